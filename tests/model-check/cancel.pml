/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cancel.pml - one tag used by several requests, cancelled by its word, by a slot, or not at all.
 *
 * client()  tkr_submit(), tkr_cancel(), tkr_cancel_ordered(), events_take(), tkr_release()
 *           clients/lib/{submit,events}.c
 * daemon()  client_take(), client_cancels(), io_put(), io_done()      runtime/io/client.c
 *           and an engine that ends a request whenever it likes, or at a cancel
 *
 * Queues are channels here (ring.pml looks inside). The cancel word travels apart from the slots, so
 * it may arrive before its request or long after its end: weaker than x86 and than C11's coherence.
 * The last request never ends by itself, so a lost cancel is an invalid end state.
 * One DONE per accepted slot and none besides; no line of a request after its DONE; a request
 * that nobody cancelled never ends CANCELLED; io_done() always finds its reserved line; DONE's
 * record is the request's own. Users are unique here; on the wire their low half is, for 2^32
 * requests.
 *
 * Mistakes: WORD_IS_FLAG WORD_AT_EDGE SLOT_ENDS_IT SLOT_UNANSWERED NO_RESERVE
 *           TAG_FREE_AT_CANCEL RECORD_AFTER_DONE LINE_AFTER_DONE CANCEL_NOT_KEPT
 */
#ifndef REQUESTS
#define REQUESTS 3
#endif
#ifndef LINES
#define LINES 1 /* of each request, beside its DONE */
#endif
#ifndef CQ
#define CQ 2
#endif
#define MAX 8 /* users of requests are 1 .. REQUESTS, of CANCEL slots MAX and up */

mtype = { GENERATE, CANCEL, TOKEN, DONE, OK, CANCELLED, DUPLICATE };

chan sq = [2] of { mtype, byte, byte };  /* op, user, target */
chan cq = [CQ] of { mtype, byte, mtype }; /* kind, user, status */
chan word_store = [1] of { byte };        /* on its way to memory */
byte word;                                /* cancel[tag] */
byte record;                              /* results[tag].user */
bit asked[MAX];                           /* the client cancelled this user */

proctype word_flush()
{
end:
    do
    :: word_store ? word
    od
}

proctype client()
{
    byte live = 0, submitted = 0, done = 0, user;
    bit slot_live = 0;
    byte slots = 1; /* CANCEL slots that it may still send */
    mtype kind, status;

    do
    :: live == 0 && submitted < REQUESTS ->
        submitted++;
        live = submitted;
        sq ! GENERATE, live, 0
    :: live && !asked[live] ->
        asked[live] = 1;
        word_store ! live;
#ifdef TAG_FREE_AT_CANCEL
        live = 0
#endif
    :: live && slots > 0 && !slot_live ->
        slots--;
        slot_live = 1;
        asked[live] = 1;
        sq ! CANCEL, MAX, live
    :: cq ? kind, user, status ->
        if
        :: user == MAX ->
            assert(kind == DONE && slot_live);
            slot_live = 0
        :: else ->
            assert(status != DUPLICATE);
            assert(user == live); /* one DONE, and nothing after it */
            if
            :: kind == DONE ->
                assert(record == user);
                assert(status == OK || asked[user]);
                live = 0; /* tkr_release(): the tag may be used again */
                done++
            :: else
            fi
        fi;
        user = 0
    :: done == REQUESTS && !slot_live -> break
    od;
    assert(empty(cq))
}

inline publish(what, whose, how)
{
    assert(nfull(cq)); /* the line was reserved, or room was looked at */
    cq ! what, whose, how
}

/* io_done() */
inline finish(how)
{
#ifdef RECORD_AFTER_DONE
    publish(DONE, holder, how);
    record = holder;
#else
    record = holder;
    publish(DONE, holder, how);
#endif
#ifdef LINE_AFTER_DONE
    if
    :: len(cq) < CQ -> publish(TOKEN, holder, OK)
    :: else
    fi;
#endif
    holder = 0;
    cancel = 0;
    lines = 0;
    reserved = 0
}

#ifdef NO_RESERVE
#define ROOM (len(cq) < CQ)
#else
#define ROOM (len(cq) + reserved < CQ)
#endif

proctype daemon()
{
    byte holder = 0; /* user that holds the tag */
    byte reserved = 0, lines = 0, user, target, seen = 0;
    bit cancel = 0;
    mtype op;

end:
    do
    :: ROOM && nempty(sq) -> /* client_take() */
        sq ? op, user, target;
        if
        :: op == GENERATE && holder -> publish(DONE, user, DUPLICATE)
        :: op == GENERATE && !holder ->
            holder = user;
            lines = LINES;
            cancel = 0;
            reserved = 1
        :: op == CANCEL ->
#ifdef SLOT_UNANSWERED
            if
            :: holder == target -> publish(DONE, user, OK)
            :: else
            fi;
#else
            publish(DONE, user, OK);
#endif
            if
            :: holder == target && holder ->
#ifdef SLOT_ENDS_IT
                if
                :: len(cq) < CQ -> publish(DONE, holder, CANCELLED)
                :: else
                fi;
#endif
                cancel = 1
            :: else
            fi
        fi;
        user = 0;
        target = 0
#ifdef WORD_AT_EDGE
    :: word != seen -> /* looks at a word once, when it changes */
        seen = word;
        if
        :: holder && word == holder -> cancel = 1
        :: else
        fi
#else
#ifdef WORD_IS_FLAG
    :: holder && word && !cancel -> cancel = 1
#else
    :: holder && word == holder && !cancel -> cancel = 1 /* client_cancels() */
#endif
#endif
    :: holder && lines > 0 && ROOM -> /* io_put() */
        lines--;
        publish(TOKEN, holder, OK)
    :: holder && cancel -> finish(CANCELLED)
    :: holder && holder < REQUESTS -> finish(OK)
#ifdef CANCEL_NOT_KEPT
    :: cancel -> cancel = 0 /* a step that was under way forgets what came meanwhile */
#endif
    od
}

init
{
    atomic { run word_flush(); run client(); run daemon() }
}
