/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/textwork.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

struct job_ring { /* one producer, one consumer, both ours; never full: it has room for every job */
    struct job **slots;
    uint32_t mask;
    _Atomic uint32_t head; /* consumer's */
    _Atomic uint32_t tail; /* producer's */
};

struct turn {      /* of an owner or a client */
    uint64_t next; /* where its next job begins */
    uint64_t now;  /* an owner: where its last job that was handed over began, among its clients */
    uint32_t n_waiting; /* jobs that wait */
};

struct textwork {
    const struct vocab *vocab;
    const struct template *template;
    uint32_t n_ctx;
    uint32_t text_max;
    struct bpe *bpe;        /* the worker's */
    struct bpe *bpe_inline; /* the ring thread's */
    struct job_ring in, out;
    struct job **waiting; /* [n_jobs] the ring thread's, as the next five */
    uint32_t n_waiting;
    uint64_t ahead_bytes;  /* put into `in` and not yet taken from `out` */
    uint64_t now;          /* where the last job that was put into `in` began, among the owners */
    uint64_t n_put;        /* jobs that ever waited */
    struct turn *turns;    /* [n_shares] */
    _Atomic uint32_t bell; /* futex word the worker sleeps on */
    _Atomic uint32_t asleep;
    _Atomic int stop;
    void (*done)(void *ctx);
    void *ctx;
    pthread_t thread;
    int started;
};

static int ring_new(struct job_ring *ring, uint32_t n)
{
    uint32_t size = 1;

    while (size < n)
        size *= 2;
    ring->slots = calloc(size, sizeof *ring->slots);
    ring->mask = size - 1;
    return ring->slots ? 0 : -ENOMEM;
}

static void ring_put(struct job_ring *ring, struct job *job)
{
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);

    ring->slots[tail & ring->mask] = job;
    /* Release pairs with the acquire in ring_take(): the job is written before it is seen. */
    atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
}

static struct job *ring_take(struct job_ring *ring)
{
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    struct job *job;

    if (head == atomic_load_explicit(&ring->tail, memory_order_acquire))
        return NULL;
    job = ring->slots[head & ring->mask];
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
    return job;
}

/* Ids of a TOKENIZE go to the job's own memory (more than a context's worth is fine), all others to
 * the request. A BOS comes before raw text that is to be run, if the model adds one; the
 * template sees to its own. */
static void job_tokenize(const struct textwork *work, struct bpe *bpe, struct job *job)
{
    struct request *req = job->req;
    int whole = req->op == REQUEST_TOKENIZE;
    uint32_t *ids = whole ? job->ids : req->tokens;
    uint32_t max = whole ? job->text_max : work->n_ctx;
    uint32_t bos = vocab_bos(work->vocab);
    uint32_t n = 0;

    if (job->data_kind == TKR_DATA_MESSAGES) {
        job->text_error =
            template_encode(work->template, bpe, job->messages, job->n_messages, ids, &n, max);
    } else {
        if (bos != VOCAB_NONE && !whole)
            ids[n++] = bos;
        job->text_error = bpe_encode(bpe, job->text, job->n_text, ids, &n, max);
    }
    if (job->text_error == -EILSEQ)
        job->text_byte = bpe_unknown_byte(bpe);
    job->n_ids = n;
    if (!whole && job->text_error == 0)
        req->n_prompt = n;
}

static void worker_sleep(struct textwork *work)
{
    uint32_t bell = atomic_load(&work->bell);

    /* seq_cst pairs with the one in textwork_put(): either it sees `asleep`, or we see its job. */
    atomic_store(&work->asleep, 1);
    if (atomic_load(&work->in.head) == atomic_load(&work->in.tail) && !atomic_load(&work->stop))
        syscall(SYS_futex, &work->bell, FUTEX_WAIT_PRIVATE, bell, NULL, NULL, 0);
    atomic_store(&work->asleep, 0);
}

static void *worker_main(void *arg)
{
    struct textwork *work = arg;

    pthread_setname_np(pthread_self(), "tkr-text");
    while (!atomic_load(&work->stop)) {
        struct job *job = ring_take(&work->in);

        if (!job) {
            worker_sleep(work);
            continue;
        }
        job_tokenize(work, work->bpe, job);
        ring_put(&work->out, job);
        work->done(work->ctx);
    }
    return NULL;
}

static void worker_ring(struct textwork *work)
{
    atomic_fetch_add(&work->bell, 1);
    syscall(SYS_futex, &work->bell, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Bytes that count for a turn: no job is free. */
#define JOB_BYTES 64u

static uint64_t job_bytes(const struct job *job)
{
    return job->n_text + JOB_BYTES;
}

static void hand(struct textwork *work, struct job *job)
{
    struct turn *owner = &work->turns[job->req->owner], *client = &work->turns[job->req->client];

    work->ahead_bytes += job_bytes(job);
    work->now = owner->next;
    owner->next += job_bytes(job);
    owner->now = client->next;
    client->next += job_bytes(job);
    ring_put(&work->in, job);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load(&work->asleep))
        worker_ring(work);
}

static struct job *waiting_remove(struct textwork *work, uint32_t i)
{
    struct job *job = work->waiting[i];

    work->waiting[i] = work->waiting[--work->n_waiting];
    work->turns[job->req->owner].n_waiting--;
    work->turns[job->req->client].n_waiting--;
    return job;
}

/* Owner by owner, client by client, then in the order of arrival. */
static int goes_before(const struct textwork *work, const struct job *a, const struct job *b)
{
    const struct request *x = a->req, *y = b->req;

    if (x->owner != y->owner) /* ties are rare, and any order is fair */
        return work->turns[x->owner].next != work->turns[y->owner].next
                   ? work->turns[x->owner].next < work->turns[y->owner].next
                   : x->owner < y->owner;
    if (x->client != y->client)
        return work->turns[x->client].next != work->turns[y->client].next
                   ? work->turns[x->client].next < work->turns[y->client].next
                   : x->client < y->client;
    return a->turn < b->turn;
}

/* Those whose turn is next, as long as the worker has little before it. */
static void hand_waiting(struct textwork *work)
{
    while (work->n_waiting > 0 && work->ahead_bytes < TEXTWORK_AHEAD_BYTES) {
        uint32_t first = 0;

        for (uint32_t i = 1; i < work->n_waiting; i++) {
            if (goes_before(work, work->waiting[i], work->waiting[first]))
                first = i;
        }
        hand(work, waiting_remove(work, first));
    }
}

/* One more waits. Who had none has saved nothing up, and is ahead by its last job at most: more than
 * that is of another owner or client that had its number. */
static void turn_add(const struct textwork *work, struct turn *turn, uint64_t now)
{
    if (turn->n_waiting++ > 0)
        return;
    if (turn->next < now || turn->next - now > work->text_max + JOB_BYTES)
        turn->next = now;
}

void textwork_put(struct textwork *work, struct job *job)
{
    struct turn *owner = &work->turns[job->req->owner];

    job->turn = work->n_put++;
    turn_add(work, owner, work->now);
    turn_add(work, &work->turns[job->req->client], owner->now);
    work->waiting[work->n_waiting++] = job;
    hand_waiting(work);
}

struct job *textwork_take(struct textwork *work)
{
    struct job *job = ring_take(&work->out);

    if (job) {
        work->ahead_bytes -= job_bytes(job);
        hand_waiting(work);
        return job;
    }
    for (uint32_t i = 0; i < work->n_waiting; i++) {
        if (work->waiting[i]->req->cancel)
            return waiting_remove(work, i);
    }
    return NULL;
}

void textwork_run(struct textwork *work, struct job *job)
{
    job_tokenize(work, work->bpe_inline, job);
}

int textwork_new(struct textwork **ret_work, const struct vocab *vocab,
                 const struct template *template, uint32_t n_ctx, uint32_t text_max,
                 uint32_t n_jobs, uint32_t n_shares, void (*done)(void *ctx), void *ctx,
                 struct diag *diag)
{
    struct textwork *work = calloc(1, sizeof *work);
    int err;

    if (!work)
        return -ENOMEM;
    work->vocab = vocab;
    work->template = template;
    work->n_ctx = n_ctx;
    work->text_max = text_max;
    work->done = done;
    work->ctx = ctx;
    work->waiting = calloc(n_jobs, sizeof(struct job *));
    work->turns = calloc(n_shares, sizeof *work->turns);
    err = work->waiting && work->turns ? bpe_new(&work->bpe, vocab, text_max, diag) : -ENOMEM;
    if (err < 0)
        goto fail;
    err = bpe_new(&work->bpe_inline, vocab, TEXTWORK_INLINE_BYTES, diag);
    if (err < 0)
        goto fail;
    err = ring_new(&work->in, n_jobs);
    if (err == 0)
        err = ring_new(&work->out, n_jobs);
    if (err < 0)
        goto fail;
    err = -pthread_create(&work->thread, NULL, worker_main, work);
    if (err < 0) {
        diag_set(diag, "cannot start the text worker: error %d", -err);
        goto fail;
    }
    work->started = 1;
    *ret_work = work;
    return 0;

fail:
    textwork_free(work);
    return err;
}

void textwork_free(struct textwork *work)
{
    if (!work)
        return;
    if (work->started) {
        atomic_store(&work->stop, 1);
        worker_ring(work);
        pthread_join(work->thread, NULL);
    }
    bpe_free(work->bpe);
    bpe_free(work->bpe_inline);
    free(work->waiting);
    free(work->turns);
    free(work->in.slots);
    free(work->out.slots);
    free(work);
}
