/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events.c - what comes back: lines of the completion queue become events; waiting for them.
 *
 * Text and ids are handed out where they lie, in the line. Lines go back to the daemon (cq_head)
 * only at the next peek or wait, so until then they stay. Each line's words are copied once and
 * checked in the copy; a line about a request that does not live is skipped, a line that no daemon
 * would write ends the connection.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include "clients/lib/conn.h"
#include "shm/doorbell.h"

#define BYTES_PER_DRAIN 64u /* that the daemon may have sent since tkr_arm(); it sends one */
#define SPINS_PER_CLOCK 32u /* a clock read costs about as much as one pause */

/* ---- lines to events ------------------------------------------------------------------------- */

static int broken(tkr_conn *conn)
{
    conn_lost(conn, "the daemon wrote a completion that breaks the protocol");
    conn->broken = 1;
    return 0;
}

/* Writes down what the program is given, so that a restarted daemon can go on behind it. */
static void received_add(tkr_conn *conn, struct request *request, const struct tkr_cqe *cqe)
{
    uint32_t *ids = (uint32_t *)(void *)(conn->arena_base + request->resume_off);

    if (request->resume_room) {
        if (cqe->ntok > request->resume_room - request->received ||
            (cqe->ntok && cqe->pos != request->received))
            request->odd = 1;
        else
            memcpy(ids + request->received, cqe->u.token.tok, cqe->ntok * sizeof *ids);
    }
    if (!request->odd)
        request->received += cqe->ntok;
    request->text_bytes += cqe->nbytes;
}

static int text_event(tkr_conn *conn, struct request *request, const struct tkr_cqe *cqe,
                      const struct tkr_cqe *line, tkr_event *event)
{
    if (cqe->ntok > TKR_LINE_TOKENS || cqe->nbytes > TKR_LINE_TEXT)
        return broken(conn);
    received_add(conn, request, cqe);
    event->type = TKR_EV_TEXT;
    event->raw = (cqe->flags & TKR_CQE_RAW) != 0;
    event->text = (const char *)line->u.token.utf8;
    event->len = cqe->nbytes;
    event->tokens = line->u.token.tok;
    event->n = cqe->ntok;
    event->pos = cqe->pos;
    return 1;
}

static int bulk_event(tkr_conn *conn, struct request *request, const struct tkr_cqe *cqe,
                      tkr_event *event)
{
    uint64_t bulk_len = conn->t_header.bulk_len;
    uint32_t off = cqe->u.bulk.off, bytes = cqe->u.bulk.bytes, count = cqe->u.bulk.count;
    const uint8_t *at = conn->bulk_base + off;

    if (bytes > bulk_len || off > bulk_len - bytes || count > bytes / 4 || off % 4)
        return broken(conn);
    if (cqe->u.bulk.type == TKR_BULK_U32)
        event->ids = (const uint32_t *)(const void *)at;
    else if (cqe->u.bulk.type == TKR_BULK_F32)
        event->values = (const float *)(const void *)at;
    else
        return 0; /* a later version's type: unknown, as unknown kinds are */
    conn->n_bulk += !request->has_bulk;
    request->has_bulk = 1;
    event->type = TKR_EV_BULK;
    event->n = count;
    event->pos = cqe->pos;
    return 1;
}

static void result_read(tkr_conn *conn, struct request *request, tkr_event *event)
{
    const uint8_t *base = (const uint8_t *)conn->t.base + conn->t_header.res_off;
    struct tkr_result result;

    tkr_copy_once(&result, base + (size_t)conn_tag(request->user) * sizeof result, sizeof result);
    if (result.user != request->user)
        return;
    event->finish = result.finish;
    event->prompt_tokens = result.prompt;
    event->cached_tokens = result.cached;
    event->output_tokens = result.output;
    event->discarded_tokens = result.discarded;
    event->seed = result.seed;
    event->retry_after_ns = result.retry_after_ns;
    event->have = result.have;
    event->want = result.want;
    memcpy(event->model_hash, result.model_hash, sizeof event->model_hash);
    event->times = (struct tkr_times){
        .submit = result.stamp[TKR_STAMP_SUBMIT],
        .seen = result.stamp[TKR_STAMP_SEEN],
        .admitted = result.stamp[TKR_STAMP_ADMITTED],
        .prefill = result.stamp[TKR_STAMP_PREFILL],
        .first_token = result.stamp[TKR_STAMP_FIRST],
        .last_token = result.stamp[TKR_STAMP_LAST],
        .done = result.stamp[TKR_STAMP_DONE],
    };
    memcpy(request->message, result.message, sizeof request->message);
    request->message[sizeof request->message - 1] = '\0';
}

/* How the program is to see the end that the daemon told. */
static uint16_t done_status(const struct request *request, uint16_t status)
{
    /* A daemon that cannot go on in the middle of a stream, or serves another model by now. */
    if (request->resumed && (status == TKR_E_MISMATCH || status == TKR_E_NO_MODEL ||
                             (status == TKR_E_UNSUPPORTED && request->received)))
        return TKR_E_RESTARTED;
    return status;
}

static int done_event(tkr_conn *conn, struct request *request, const struct tkr_cqe *cqe,
                      tkr_event *event)
{
    if (request->internal) {
        request_return(conn, request);
        return 0;
    }
    /* Given up by a daemon that stops: the next one goes on with it. */
    if (conn->reconnect.on && cqe->status == TKR_E_ABORTED &&
        TKR_LOAD_RELAXED(conn->state) != TKR_STATE_RUN) {
        conn->n_aborted += !request->aborted;
        request->aborted = 1;
        return 0;
    }
    event->type = TKR_EV_DONE;
    event->status = done_status(request, cqe->status);
    if (!(cqe->flags & TKR_CQE_NO_RESULT))
        result_read(conn, request, event);
    event->message = request->message;
    TKR_STORE_RELAXED(&request->state, REQUEST_ENDED);
    conn->n_done++;
    return 1;
}

/* 1: *event is filled in. cqe is the private copy, line where it came from. */
static int line_event(tkr_conn *conn, const struct tkr_cqe *cqe, const struct tkr_cqe *line,
                      tkr_event *event)
{
    struct request *request = conn_request(conn, cqe->user);

    if (!request || TKR_LOAD_RELAXED(&request->state) != REQUEST_LIVE || request->restarted ||
        cqe->tag != conn_tag(cqe->user))
        return 0;
    *event = (struct tkr_event){.user_data = request->user_data, .id = cqe->user};
    switch (cqe->kind) {
    case TKR_CQE_TOKEN:
        return text_event(conn, request, cqe, line, event);
    case TKR_CQE_BULK:
        return bulk_event(conn, request, cqe, event);
    case TKR_CQE_DONE:
        return done_event(conn, request, cqe, event);
    default:
        return 0;
    }
}

static unsigned lines_take(tkr_conn *conn, tkr_event *events, unsigned n)
{
    unsigned count = 0;

    /* Once round at most: a daemon that runs on ahead of cq_head must not keep us here. */
    for (uint32_t left = conn->cq.mask + 1; left && count < n && !conn->broken; left--) {
        const uint64_t *line =
            conn->cq.slots + (size_t)(conn->cq.pos & conn->cq.mask) * TKR_SLOT_WORDS;
        struct tkr_cqe cqe;

        if (tkr_ring_take(&conn->cq, &cqe) < 0)
            break;
        count += (unsigned)line_event(conn, &cqe, (const struct tkr_cqe *)(const void *)line,
                                      &events[count]);
    }
    return count;
}

/* DONE events made here: of every live request, or only of those that could not be resumed. */
static unsigned own_ends(tkr_conn *conn, tkr_event *events, unsigned n, int all)
{
    unsigned count = 0;

    for (uint32_t tag = 0; tag < conn->max_inflight && count < n; tag++) {
        struct request *request = &conn->requests[tag];
        /* Acquire pairs with the submitting thread's release: the entry was filled in before. */
        tkr_id id = TKR_LOAD_ACQUIRE(&request->user);

        if (!id || TKR_LOAD_RELAXED(&request->state) != REQUEST_LIVE ||
            (!all && !request->restarted))
            continue;
        if (request->internal) {
            request_return(conn, request);
            continue;
        }
        strncpy(request->message,
                request->restarted ? "the daemon restarted; this request cannot go on"
                                   : conn->gone_why,
                sizeof request->message - 1);
        events[count++] = (struct tkr_event){
            .type = TKR_EV_DONE,
            .status = request->restarted ? TKR_E_RESTARTED : conn->gone_status,
            .user_data = request->user_data,
            .id = id,
            .message = request->message,
        };
        conn->n_restarted -= request->restarted;
        TKR_STORE_RELAXED(&request->state, REQUEST_ENDED);
        conn->n_done++;
    }
    return count;
}

/* What the daemon published before it went is still there and comes first. */
static int events_take(tkr_conn *conn, tkr_event *events, unsigned n)
{
    unsigned count;

    if (n > INT32_MAX)
        n = INT32_MAX;
    if (conn->cq_head_told != conn->cq.pos) {
        /* Release pairs with the daemon's acquire: the lines were read before they are written
         * again. */
        TKR_STORE_RELEASE(conn->cq_head, conn->cq.pos);
        conn->cq_head_told = conn->cq.pos;
    }
    count = lines_take(conn, events, n);
    if (!count && !conn->gone && TKR_LOAD_ACQUIRE(conn->state) == TKR_STATE_GONE) {
        /* Acquire pairs with the daemon's release: it published its last lines before this
         * state. */
        count = lines_take(conn, events, n);
        if (!count)
            conn_lost(conn, "the daemon stopped");
    }
    /* Nothing more comes from a daemon that drains: whoever took its place is asked at once. */
    if (!count && !conn->gone && conn->n_aborted && conn->n_aborted == conn_n_live(conn))
        conn_lost(conn, "the daemon stops");
    if (conn->n_restarted && count < n)
        count += own_ends(conn, events + count, n - count, 0);
    if (count || !conn->gone || conn_reconnecting(conn))
        return (int)count;
    count = own_ends(conn, events, n, 1);
    return count || !n ? (int)count : -ESHUTDOWN;
}

/* A daemon that lives and wants us no more says so before it hangs up: there is no coming back. */
static void dismissed(tkr_conn *conn, const struct tkr_refused *refused)
{
    /* In our own words: they fit a DONE event whole, and say who has to change. */
    static const char strikes[] =
        "the daemon ended this connection: too many malformed requests of this program";

    _Static_assert(sizeof strikes <= sizeof((struct tkr_result *)0)->message, "it is cut");
    if (refused->reason == TKR_REFUSED_STRIKES)
        memcpy(conn->dismissal, strikes, sizeof strikes);
    else
        memcpy(conn->dismissal, refused->message, sizeof conn->dismissal);
    conn->dismissal[sizeof conn->dismissal - 1] = '\0';
    TKR_STORE_RELAXED(&conn->reconnect.gave_up, 1);
    conn_lost(conn, conn->dismissal);
}

/* Takes what the daemon sent: the byte of tkr_arm(), perhaps a last word. Sees its hang-up. */
static void socket_drain(tkr_conn *conn)
{
    struct tkr_refused message;
    ssize_t got = 1;

    for (unsigned i = 0; i < BYTES_PER_DRAIN && got > 0; i++) {
        got = recv(conn->fd, &message, sizeof message, MSG_DONTWAIT);
        if (got == (ssize_t)sizeof message && message.head.magic == TKR_MAGIC_CTL &&
            message.head.type == TKR_CTL_REFUSED)
            dismissed(conn, &message);
    }
    if (!got || (got < 0 && errno != EAGAIN && errno != EINTR))
        conn_lost(conn, "the daemon is gone: its socket hung up");
}

/* Takes back the wish of tkr_arm(), and the byte that it may have brought. */
static void disarm(tkr_conn *conn)
{
    conn->armed = 0;
    TKR_STORE_RELAXED(conn->wait, 0);
    if (!conn->gone)
        socket_drain(conn);
}

int tkr_peek(tkr_conn *conn, tkr_event *events, unsigned n)
{
    if (conn_stale(conn))
        return -ESTALE;
    if (conn->armed)
        disarm(conn);
    return events_take(conn, events, n);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* 1: something for events_take() is there. */
static int awaited(const tkr_conn *conn)
{
    return tkr_ring_ready(&conn->cq) || TKR_LOAD_RELAXED(conn->state) == TKR_STATE_GONE;
}

/* Spinning on the daemon's own core, or unasked on a core where the model computes, only delays the
 * answer. */
static int may_spin(const tkr_conn *conn)
{
    int cpu = sched_getcpu();

    if (!conn->spin_ns)
        return 0;
    if (cpu < 0)
        return 1;
    if ((uint32_t)cpu == TKR_LOAD_RELAXED(conn->daemon_cpu))
        return 0;
    if (conn->spin_forced || (uint32_t)cpu >= 64 * TKR_T_ENGINE_CPU_WORDS)
        return 1;
    return !(TKR_LOAD_RELAXED(&conn->engine_cpus[cpu / 64]) >> (cpu % 64) & 1);
}

static void spin(const tkr_conn *conn, uint64_t until_ns)
{
    do {
        for (unsigned i = 0; i < SPINS_PER_CLOCK; i++) {
            if (awaited(conn))
                return;
            tkr_pause();
        }
    } while (clock_ns() < until_ns);
}

/*
 * Lines that a sleep may wait for, at most wanted: what is to come at the least if every live
 * request runs to its length, so that the last lines of an answer are not waited for beyond it.
 */
static uint32_t lines_to_come(const tkr_conn *conn, uint32_t wanted)
{
    uint32_t most = (conn->cq.mask + 1) / 2; /* a full queue would never grow to more */
    uint64_t lines = 0;

    if (wanted > most)
        wanted = most;
    for (uint32_t tag = 0; wanted > 1 && tag < conn->max_inflight && lines < wanted; tag++) {
        const struct request *request = &conn->requests[tag];

        /* Acquire pairs with the submitting thread's release: the entry was filled in before. */
        if (!TKR_LOAD_ACQUIRE(&request->user) ||
            TKR_LOAD_RELAXED(&request->state) != REQUEST_LIVE || request->internal)
            continue;
        lines += 1;
        if (request->max_tokens > request->received)
            lines += (request->max_tokens - request->received) / TKR_LINE_TOKENS;
    }
    return lines < wanted ? (lines ? (uint32_t)lines : 1) : wanted;
}

/* Sleeps until n_lines more are published, or timeout_ns. */
static void doze(tkr_conn *conn, uint32_t n_lines, int64_t timeout_ns)
{
    /* The order is load-bearing (shm/doorbell.h). Acquire pairs with the daemon's bump of the
     * bell. */
    uint32_t bell = TKR_LOAD_ACQUIRE(conn->cq_bell);

    TKR_STORE_RELAXED(conn->wait, TKR_WAIT_ASLEEP | (uint32_t)(conn->cq.pos + n_lines));
    /* Store-load; partner: the daemon's fence between publishing lines and reading the wait
     * words. */
    tkr_fence();
    if (!awaited(conn))
        tkr_futex_wait(conn->cq_bell, bell, timeout_ns);
    TKR_STORE_RELAXED(conn->wait, 0);
}

int tkr_arm(tkr_conn *conn)
{
    if (conn_stale(conn))
        return -ESTALE;
    if (conn->gone)
        return conn_reconnecting(conn) ? -EAGAIN : conn_n_live(conn) ? 1 : -ESHUTDOWN;
    conn->armed = 1;
    TKR_STORE_RELAXED(conn->wait,
                      TKR_WAIT_ASLEEP | TKR_WAIT_BY_SOCKET | (uint32_t)(conn->cq.pos + 1));
    /* Store-load; partner: the daemon's fence between publishing lines and reading the wait
     * words. */
    tkr_fence();
    return awaited(conn) || conn->n_restarted;
}

int conn_hung_up(const tkr_conn *conn)
{
    struct pollfd pfd = {.fd = conn->fd, .events = POLLRDHUP};

    return poll(&pfd, 1, 0) == 1 && (pfd.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

/* Sleeps or spins until something may have come; *now is the time afterwards. */
static void await(tkr_conn *conn, uint64_t *now, uint64_t end, uint64_t spin_until)
{
    if (conn_reconnecting(conn))
        reconnect_step(conn, *now, end);
    else if (*now < spin_until && *now < end)
        spin(conn, spin_until < end ? spin_until : end);
    else if (*now < end)
        doze(conn, lines_to_come(conn, conn->wake_every),
             end - *now < (uint64_t)SLEEP_NS_MAX ? (int64_t)(end - *now) : SLEEP_NS_MAX);
    *now = clock_ns();
    /* Looked at before the last lines are taken: what was published before the hang-up is not
     * lost. */
    if (!conn->gone && *now - conn->looked_ns >= (uint64_t)SLEEP_NS_MAX) {
        conn->looked_ns = *now;
        if (conn_hung_up(conn))
            socket_drain(conn);
    }
}

int tkr_wait(tkr_conn *conn, tkr_event *events, unsigned n, int64_t timeout_ns)
{
    uint64_t now, end, spin_until;
    int got;

    if (conn_stale(conn))
        return -ESTALE;
    if (!n || timeout_ns < TKR_FOREVER)
        return -EINVAL;
    if (conn->armed)
        disarm(conn);
    got = events_take(conn, events, n);
    if (got)
        return got;

    now = clock_ns();
    end = timeout_ns < 0 || (uint64_t)timeout_ns > UINT64_MAX - now ? UINT64_MAX
                                                                    : now + (uint64_t)timeout_ns;
    spin_until = may_spin(conn) ? now + (uint64_t)conn->spin_ns : now;
    for (;;) {
        if (timeout_ns < 0 && !conn_n_live(conn) && !conn_reconnecting(conn))
            return -EDEADLK;
        await(conn, &now, end, spin_until);
        got = events_take(conn, events, n);
        if (got || now >= end)
            return got;
    }
}
