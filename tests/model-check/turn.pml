/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turn.pml - one client's hot queues take turns: a pass looks at one of them.
 *
 * queue_turn(), queue_move(), io_pass(), hot_park()                    runtime/io/io.c, state.h
 *
 * One thread, so no store buffers. Between two looks whatever a client may do happens: slots come,
 * parked queues are rung with or without one, what is empty parks. The queue whose turn it is must
 * be hot, and one with slots is looked at after the others had at most one turn each.
 *
 * Mistakes: TURN_STAYS LOWEST_NEXT LOWEST_AFTER_PARK
 */
#ifndef QUEUES
#define QUEUES 4
#endif
#define LAST (QUEUES - 1)
#define BIT(q) (1 << (q))
#define IS_HOT(q) (hot >> (q) & 1)

byte hot, next;
bit ready[QUEUES];
byte waited[QUEUES]; /* looks at others while this one was hot and had slots */

/* next: the hot queue after `from`, round the end. */
inline turn_after(from)
{
#ifdef LOWEST_NEXT
    next = 0;
#else
    next = (from + 1) % QUEUES;
#endif
    do
    :: IS_HOT(next) -> break
    :: else -> next = (next + 1) % QUEUES
    od
}

inline moved()
{
    if
#ifndef TURN_STAYS
    :: hot && !IS_HOT(next) ->
#ifdef LOWEST_AFTER_PARK
        turn_after(LAST)
#else
        turn_after(next)
#endif
#endif
    :: else
    fi
}

inline look()
{
    d_step {
        assert(IS_HOT(next));
        waited[next] = 0;
        q = 0;
        do
        :: q == QUEUES -> break
        :: q < QUEUES ->
            if
            :: q != next && IS_HOT(q) && ready[q] -> waited[q]++; assert(waited[q] < QUEUES)
            :: else
            fi;
            q++
        od;
        q = next
    }
    if /* all of its slots, or eight */
    :: ready[q] = 0
    :: skip
    fi;
    d_step { turn_after(q); q = 0 }
}

proctype daemon()
{
    byte q = 0;

    do
    ::
        /* Slots come. */
        for (q : 0 .. LAST) {
            if
            :: ready[q] = 1
            :: skip
            fi
        }
        q = 0;
        if /* io_pass() */
        :: hot -> look()
        :: else
        fi;
        /* Events, the peek. */
        for (q : 0 .. LAST) {
            if
            :: !IS_HOT(q) -> d_step { hot = hot | BIT(q); moved() }
            :: skip
            fi
        }
        /* hot_park() */
        for (q : 0 .. LAST) {
            if
            :: IS_HOT(q) && !ready[q] -> d_step { hot = hot & ~BIT(q); waited[q] = 0; moved() }
            :: skip
            fi
        }
        q = 0
    od
}

init
{
    run daemon()
}
