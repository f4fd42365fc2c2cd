/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.pml - a queue of slots that carry their own sequence number (shm/ring.h).
 *
 * producer()  tkr_ring_credit(), tkr_ring_put()
 * consumer()  tkr_ring_take(); gives slots back by batches, as client_take() and events_take() do
 *
 * A payload is read only after its seq, and rewritten only after the credit for it. Payload and
 * seq are two words here; the real 60 bytes are written and read in the same place of the order.
 * -DLIAR: instead of a consumer somebody stores every position there is: the producer's room stays
 * within 0 .. N_SLOTS, so that it hurts nobody but the liar.
 *
 * Mistakes: SEQ_FIRST PAYLOAD_FIRST_READ CREDIT_FIRST NO_ROOM_CHECK FULL_FLAG; with LIAR: NO_CLAMP
 */
#define N_SLOTS 2
#ifndef LINES
#define LINES 5
#endif
#define SEQ(pos) ((pos) % N_SLOTS)
#define PAYLOAD(pos) (N_SLOTS + (pos) % N_SLOTS)
#define HEAD (2 * N_SLOTS)
#define WORDS (2 * N_SLOTS + 1)
#include "tso.pml"

chan producer_stores = [4] of { byte, byte };
chan consumer_stores = [4] of { byte, byte };

proctype producer()
{
    byte pos = 0, head = 0, told;

    do
    :: pos == LINES -> break
    :: pos < LINES ->
#ifndef NO_ROOM_CHECK
        if
        :: pos - head == N_SLOTS -> /* tkr_ring_credit() */
            told = mem[HEAD];
#ifdef NO_CLAMP
            head = told;
#else
            if
            :: told >= head && told - head <= pos - head -> head = told
            :: else /* a lie */
            fi;
#endif
            told = 0
        :: else
        fi;
        assert(pos >= head && pos - head <= N_SLOTS);
#ifdef LIAR
        if
        :: pos - head == N_SLOTS -> break /* the liar loses; there is nothing else to see */
        :: else
        fi;
#else
        if
        :: pos - head == N_SLOTS -> goto again
        :: else
        fi;
#endif
#endif
#ifdef SEQ_FIRST
        STORE(producer_stores, SEQ(pos), pos + 1);
        STORE(producer_stores, PAYLOAD(pos), pos + 1);
#else
        STORE(producer_stores, PAYLOAD(pos), pos + 1);
        STORE(producer_stores, SEQ(pos), pos + 1);
#endif
        pos++;
again:  skip
    od
}

#ifdef FULL_FLAG
#define READY(pos) (mem[SEQ(pos)] != 0) /* a slot of an earlier lap looks the same */
#else
#define READY(pos) (mem[SEQ(pos)] == pos + 1)
#endif

proctype consumer()
{
    byte pos = 0, payload;

    do
    :: pos == LINES -> break
    :: pos < LINES ->
#ifdef PAYLOAD_FIRST_READ
        payload = mem[PAYLOAD(pos)];
        READY(pos);
#else
        READY(pos);
#ifdef CREDIT_FIRST
        STORE(consumer_stores, HEAD, pos + 1);
#endif
        payload = mem[PAYLOAD(pos)];
#endif
        assert(payload == pos + 1);
        payload = 0;
        pos++;
#ifndef CREDIT_FIRST
        if
        :: STORE(consumer_stores, HEAD, pos)
        :: pos < LINES && mem[SEQ(pos)] == pos + 1 /* the batch goes on */
        fi
#endif
    od
}

proctype liar()
{
    byte told;

    for (told : 0 .. LINES + N_SLOTS) {
        if
        :: STORE(consumer_stores, HEAD, told)
        :: STORE(consumer_stores, HEAD, 255 - told)
        :: skip
        fi
    }
}

init
{
    atomic {
        run flush(producer_stores);
        run flush(consumer_stores);
        run producer();
#ifdef LIAR
        run liar()
#else
        run consumer()
#endif
    }
}
