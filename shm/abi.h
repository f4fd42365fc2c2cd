/* SPDX-License-Identifier: Apache-2.0 */
/*
 * abi.h - THE WIRE ABI: every byte that client and daemon share, in memory and on the socket.
 *
 * Per client there are two memfds. Region R (requests) is written by the client only and mapped
 * read-only by the daemon; region T (tokens) is written by the daemon only and mapped read-only
 * by the client. Both are sealed so that nobody can map them writable again, shrink or punch them.
 *
 * Rules: little endian; reserved bytes are zero and are checked; a field that the daemon does not
 * implement must be zero, else the request ends UNSUPPORTED; numbers are never reused; slots stay
 * 64 bytes within a major version; features are agreed on by AND. Offsets count from the start of
 * the region unless said. docs/abi.md tells the same in words. No code lives here.
 */
#ifndef TKR_SHM_ABI_H
#define TKR_SHM_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define TKR_ABI_ASSERT(cond) static_assert(cond, #cond)
#else
#define TKR_ABI_ASSERT(cond) _Static_assert(cond, #cond)
#endif
#define TKR_ABI_AT(type, field, off) TKR_ABI_ASSERT(offsetof(type, field) == (off))

#define TKR_ABI_MAJOR 1
#define TKR_ABI_MINOR 0
#define TKR_MAGIC_R 0x3130475252524b54ull    /* "TKRRRG01" */
#define TKR_MAGIC_T 0x3130475254524b54ull    /* "TKRTRG01" */
#define TKR_MAGIC_CTL 0x4c54434bu            /* "KCTL" */
#define TKR_LINE 64u                         /* bytes of a cache line and of a slot */
#define TKR_PAGE 4096u
#define TKR_SEALS_MUST 0x0017u               /* F_SEAL_SEAL | SHRINK | GROW | FUTURE_WRITE */

/* ---- limits of the layout (a daemon may grant less) ------------------------------------------ */
#define TKR_NSQ_MAX 8u
#define TKR_SQ_LOG2_MIN 4u
#define TKR_SQ_LOG2_MAX 12u
#define TKR_CQ_LOG2_MIN 5u
#define TKR_CQ_LOG2_MAX 16u
#define TKR_INFLIGHT_MAX 4096u
#define TKR_COLOURS 32u                      /* line offsets within a page that R's control lines may take */
#define TKR_MODELS 64u

/* ---- operations (SQE.op) ---------------------------------------------------------------------- */
enum tkr_op {
    TKR_OP_NOOP = 0,
    TKR_OP_PAD = 1,                          /* reserved: skipped slot */
    TKR_OP_CANCEL = 2,                       /* SQE.session is the `user` of the request to cancel;
                                                its own tag and user are free ones */
    TKR_OP_GENERATE = 3,
    TKR_OP_TOKENIZE = 4,                     /* u32 ids as BULK */
    TKR_OP_LOGPROBS = 5,                     /* f32 as BULK: [n_prompt - 1] ln p(token[i + 1] | token[0..i]) */
    TKR_OP_SCORE = 6,
    TKR_OP_EMBED = 7,
    TKR_OP_DRAFT = 8,
    TKR_OP_COMMIT = 9,
    TKR_OP_FORK = 10,
    TKR_OP_TRUNCATE = 11,
    TKR_OP_SESSION_OPEN = 12,
    TKR_OP_SESSION_CLOSE = 13,
    TKR_OP_PIN = 14,
    TKR_OP_UNPIN = 15,
    TKR_OP_GRAMMAR = 16,
    TKR_OP_LABELS = 17,
    TKR_OP_COUNT = 18
};

/* ---- how a request ended; the bit says that the same request may succeed later ---------------- */
#define TKR_STATUS_RETRY 0x8000u

enum tkr_status {
    TKR_OK = 0,
    TKR_E_INVALID = 1,                       /* a field is wrong: result.message names it and its range */
    TKR_E_UNSUPPORTED = 2,                   /* operation or field that this daemon does not implement */
    TKR_E_CONTEXT = 3,                       /* prompt + output exceed the context: have, want */
    TKR_E_DEADLINE = 4,
    TKR_E_OVERLOADED = 5 | TKR_STATUS_RETRY, /* queue, pages or a quota are full: retry_after_ns */
    TKR_E_CANCELLED = 6,
    TKR_E_ABORTED = 7 | TKR_STATUS_RETRY,    /* the daemon drains or stops */
    TKR_E_NUMERIC = 8,                       /* a row of logits was NaN or infinite */
    TKR_E_SLOW = 9,                          /* the client did not read for too long */
    TKR_E_NO_MODEL = 10,
    TKR_E_MISMATCH = 11,                     /* the model is not the pinned one */
    TKR_E_DENIED = 12,
    TKR_E_DUPLICATE = 13,                    /* tag or user id of a request that is still alive */
    TKR_E_INTERNAL = 14,
    TKR_E_GONE = 15 | TKR_STATUS_RETRY,      /* made by the library: the daemon is gone */
    TKR_E_RESTARTED = 16 | TKR_STATUS_RETRY  /* made by the library: the daemon restarted, resubmit */
};

enum tkr_finish {                            /* result.finish of a request that ended TKR_OK */
    TKR_FINISH_NONE = 0,
    TKR_FINISH_STOP = 1,                     /* end-of-sequence token, stop string or stop id */
    TKR_FINISH_LENGTH = 2                    /* max_tokens or the context limit */
};

/* ---- small enumerations ----------------------------------------------------------------------- */
enum tkr_data_kind {                         /* SQE.data_kind: what SQE.data_* points to */
    TKR_DATA_NONE = 0,
    TKR_DATA_TEXT = 1,                       /* bytes as they are, no template, control tokens are text */
    TKR_DATA_TOKENS = 2,                     /* u32 token ids, 4-byte aligned */
    TKR_DATA_MESSAGES = 3                    /* chat: the MESSAGE tail entries; data_* must be zero */
};

enum tkr_class {
    TKR_CLASS_DEFAULT = 0,                   /* interactive */
    TKR_CLASS_REALTIME = 1,
    TKR_CLASS_INTERACTIVE = 2,
    TKR_CLASS_BATCH = 3
};

enum tkr_on_late {
    TKR_LATE_DROP = 0,                       /* a request whose deadline passed never starts; a running one ends */
    TKR_LATE_CUT = 1,
    TKR_LATE_KEEP = 2
};

enum tkr_role {                              /* MESSAGE tail entry's flags */
    TKR_ROLE_SYSTEM = 0,
    TKR_ROLE_USER = 1,
    TKR_ROLE_ASSISTANT = 2,
    TKR_ROLE_TOOL = 3
};

enum tkr_tail_kind {
    TKR_TAIL_MESSAGE = 1,                    /* off, bytes: UTF-8 text; flags: role */
    TKR_TAIL_STOP_TEXT = 2,                  /* off, bytes: one stop string, 1..TKR_STOP_BYTES_MAX */
    TKR_TAIL_STOP_IDS = 3,                   /* off, count: u32 ids */
    TKR_TAIL_RESUME_IDS = 4,
    TKR_TAIL_BIAS = 5,
    TKR_TAIL_BANNED = 6
};
#define TKR_TAIL_MAX 64u                     /* tail entries of one request */
#define TKR_STOPS_MAX 16u                    /* stop strings of one request */
#define TKR_STOP_BYTES_MAX 256u
#define TKR_STOP_IDS_MAX 64u

/* ---- region R --------------------------------------------------------------------------------- */
struct tkr_r_header {                        /* at 0, immutable after attach */
    uint64_t magic;
    uint16_t major, minor;
    uint32_t header_len;                     /* 256 */
    uint64_t region_len;                     /* exact size of the memfd, a multiple of 4096 */
    uint64_t features;
    uint32_t nsq;                            /* 1..8 */
    uint32_t sq_log2;                        /* 4..12 */
    uint32_t sq_off;
    uint32_t ctl_off;                        /* 0x1000 + 64 * colour */
    uint64_t arena_off, arena_len;
    uint64_t client_nonce;
    uint32_t max_inflight;                   /* tags are 0 .. max_inflight - 1 */
    uint32_t colour;
    uint32_t sq_stride;
    uint32_t cancel_off;                     /* u32 cancel[max_inflight]: low half of `user` of the request to cancel */
    uint32_t release_off;                    /* u32 release[max_inflight]: low half of `user` of the last request
                                                of this tag that the client released: its bulk memory is free */
    uint32_t reserved0;
    uint8_t reserved[160];
};
TKR_ABI_AT(struct tkr_r_header, major, 0x08);
TKR_ABI_AT(struct tkr_r_header, header_len, 0x0c);
TKR_ABI_AT(struct tkr_r_header, region_len, 0x10);
TKR_ABI_AT(struct tkr_r_header, features, 0x18);
TKR_ABI_AT(struct tkr_r_header, nsq, 0x20);
TKR_ABI_AT(struct tkr_r_header, sq_log2, 0x24);
TKR_ABI_AT(struct tkr_r_header, sq_off, 0x28);
TKR_ABI_AT(struct tkr_r_header, ctl_off, 0x2c);
TKR_ABI_AT(struct tkr_r_header, arena_off, 0x30);
TKR_ABI_AT(struct tkr_r_header, arena_len, 0x38);
TKR_ABI_AT(struct tkr_r_header, client_nonce, 0x40);
TKR_ABI_AT(struct tkr_r_header, max_inflight, 0x48);
TKR_ABI_AT(struct tkr_r_header, colour, 0x4c);
TKR_ABI_AT(struct tkr_r_header, sq_stride, 0x50);
TKR_ABI_AT(struct tkr_r_header, cancel_off, 0x54);
TKR_ABI_AT(struct tkr_r_header, release_off, 0x58);
TKR_ABI_ASSERT(sizeof(struct tkr_r_header) == 256);

/*
 * R's control lines, one writer each, at ctl_off:
 *   line 0      u32 cq_head      the consumer's position in T's CQ
 *   line 1      u64 wait         0 = awake; else TKR_WAIT_ASLEEP | flags | low 32: wake me when the
 *                                CQ's position reaches this (an event index)
 *   line 2 + q  u32 bell[q]      futex word that the daemon sleeps on;  u32 sq_wait[q] at +4
 * The words are reached through atomics only (shm/atomic.h).
 */
#define TKR_R_CQ_HEAD 0u
#define TKR_R_WAIT 64u
#define TKR_R_BELL(q) (128u + 64u * (q))
#define TKR_R_SQ_WAIT(q) (TKR_R_BELL(q) + 4u)
#define TKR_R_CTL_BYTES (64u * (2u + TKR_NSQ_MAX))
#define TKR_WAIT_ASLEEP (1ull << 63)
#define TKR_WAIT_BY_SOCKET (1ull << 61)

/* ---- region T --------------------------------------------------------------------------------- */
struct tkr_t_header {                        /* at 0, immutable after attach */
    uint64_t magic;
    uint16_t major, minor;
    uint32_t header_len;                     /* 256 */
    uint64_t region_len;
    uint64_t features;                       /* granted: client AND daemon */
    uint64_t op_bitmap[4];                   /* bit n: operation n works */
    uint32_t ctl_off;
    uint32_t cq_off;
    uint32_t cq_log2;
    uint32_t res_off;                        /* max_inflight result records */
    uint64_t bulk_off, bulk_len;
    uint32_t models_off, n_models;
    uint64_t client_id;
    uint64_t daemon_epoch;
    uint32_t prompt_tokens_max;
    uint32_t output_tokens_max;
    uint8_t reserved[128];
};
TKR_ABI_AT(struct tkr_t_header, region_len, 0x10);
TKR_ABI_AT(struct tkr_t_header, features, 0x18);
TKR_ABI_AT(struct tkr_t_header, op_bitmap, 0x20);
TKR_ABI_AT(struct tkr_t_header, ctl_off, 0x40);
TKR_ABI_AT(struct tkr_t_header, cq_off, 0x44);
TKR_ABI_AT(struct tkr_t_header, cq_log2, 0x48);
TKR_ABI_AT(struct tkr_t_header, res_off, 0x4c);
TKR_ABI_AT(struct tkr_t_header, bulk_off, 0x50);
TKR_ABI_AT(struct tkr_t_header, bulk_len, 0x58);
TKR_ABI_AT(struct tkr_t_header, models_off, 0x60);
TKR_ABI_AT(struct tkr_t_header, n_models, 0x64);
TKR_ABI_AT(struct tkr_t_header, client_id, 0x68);
TKR_ABI_AT(struct tkr_t_header, daemon_epoch, 0x70);
TKR_ABI_AT(struct tkr_t_header, prompt_tokens_max, 0x78);
TKR_ABI_AT(struct tkr_t_header, output_tokens_max, 0x7c);
TKR_ABI_ASSERT(sizeof(struct tkr_t_header) == 256);

/*
 * T's control lines at ctl_off:
 *   line 0           u32 state (enum tkr_state), u32 daemon_cpu, u64 engine_cpus[6] (bitmap of 384)
 *   line 1           u32 cq_bell: futex word that clients sleep on
 *   line 2 + 2q      u32 sq_head[q]: slots before it may be written again
 *   line 3 + 2q      u32 need_wakeup[q]: 0 HOT (polled), 1 PARKED (ring the bell)
 */
enum tkr_state {
    TKR_STATE_RUN = 1,
    TKR_STATE_DRAIN = 2,
    TKR_STATE_GONE = 3
};
#define TKR_T_STATE 0u
#define TKR_T_DAEMON_CPU 4u
#define TKR_T_ENGINE_CPUS 8u
#define TKR_T_ENGINE_CPU_WORDS 6u
#define TKR_T_CQ_BELL 64u
#define TKR_T_SQ_HEAD(q) (128u + 128u * (q))
#define TKR_T_NEED_WAKEUP(q) (192u + 128u * (q))
#define TKR_T_CTL_BYTES (128u + 128u * TKR_NSQ_MAX)

struct tkr_model_entry {                     /* 64 of them at models_off; SQE.model is the index */
    uint8_t hash[32];                        /* of weights, tokenizer, template and kernel variant */
    uint32_t gen;                            /* odd while the entry changes */
    uint32_t n_ctx;
    uint32_t n_vocab;
    uint32_t flags;                          /* TKR_MODEL_* */
    char name[80];                           /* NUL-terminated */
};
#define TKR_MODEL_PRESENT 1u
#define TKR_MODEL_CHAT 2u                    /* has a chat template */
TKR_ABI_AT(struct tkr_model_entry, gen, 0x20);
TKR_ABI_AT(struct tkr_model_entry, name, 0x30);
TKR_ABI_ASSERT(sizeof(struct tkr_model_entry) == 128);

/* ---- slots: ready at position p when seq == p + 1; seq is stored last, with release ----------- */
struct tkr_sqe {
    uint32_t seq;
    uint8_t op;                              /* enum tkr_op */
    uint8_t flags;                           /* 0 */
    uint16_t tag;                            /* 0 .. max_inflight - 1, free */
    uint64_t user;                           /* the library's own unique request id; low half not 0 */
    uint32_t data_off, data_len;             /* bytes, relative to arena_off */
    uint32_t param_off;                      /* struct tkr_param, relative to arena_off, 8-byte aligned */
    uint32_t max_tokens;                     /* TKR_MAX_TOKENS_NONE: until the context ends */
    uint32_t resume_pos;
    uint16_t model;
    uint8_t data_kind;                       /* enum tkr_data_kind */
    uint8_t class_;                          /* enum tkr_class */
    uint64_t deadline_ns;                    /* CLOCK_MONOTONIC, 0 = none */
    uint64_t session;                        /* CANCEL: the `user` of the request to cancel */
    uint32_t param_len;                      /* 0 = all defaults; else 128 + 16 * n_tail */
    uint32_t reserved;
};
#define TKR_MAX_TOKENS_NONE 0xffffffffu
TKR_ABI_AT(struct tkr_sqe, op, 0x04);
TKR_ABI_AT(struct tkr_sqe, flags, 0x05);
TKR_ABI_AT(struct tkr_sqe, tag, 0x06);
TKR_ABI_AT(struct tkr_sqe, user, 0x08);
TKR_ABI_AT(struct tkr_sqe, data_off, 0x10);
TKR_ABI_AT(struct tkr_sqe, data_len, 0x14);
TKR_ABI_AT(struct tkr_sqe, param_off, 0x18);
TKR_ABI_AT(struct tkr_sqe, max_tokens, 0x1c);
TKR_ABI_AT(struct tkr_sqe, resume_pos, 0x20);
TKR_ABI_AT(struct tkr_sqe, model, 0x24);
TKR_ABI_AT(struct tkr_sqe, data_kind, 0x26);
TKR_ABI_AT(struct tkr_sqe, class_, 0x27);
TKR_ABI_AT(struct tkr_sqe, deadline_ns, 0x28);
TKR_ABI_AT(struct tkr_sqe, session, 0x30);
TKR_ABI_AT(struct tkr_sqe, param_len, 0x38);
TKR_ABI_AT(struct tkr_sqe, reserved, 0x3c);
TKR_ABI_ASSERT(sizeof(struct tkr_sqe) == 64);

enum tkr_cqe_kind {                          /* the library skips kinds that it does not know */
    TKR_CQE_TOKEN = 1,
    TKR_CQE_BULK = 2,
    TKR_CQE_LOGPROB = 3,
    TKR_CQE_PROGRESS = 4,
    TKR_CQE_DONE = 5                         /* terminal */
};
#define TKR_CQE_MORE 1u                      /* TOKEN: the piece (its other ids and text) goes on in the next line */
#define TKR_CQE_RAW 2u                       /* TOKEN: the bytes are not UTF-8 */
#define TKR_CQE_NO_RESULT 4u                 /* DONE: only `status` counts; no result record was written
                                                (NOOP, CANCEL, a tag out of range or of another live request) */
#define TKR_LINE_TOKENS 4u                    /* ids in one TOKEN line */
#define TKR_LINE_TEXT 24u                    /* text bytes in one TOKEN line */

struct tkr_cqe {
    uint32_t seq;
    uint8_t kind;                            /* enum tkr_cqe_kind */
    uint8_t ntok;                            /* 0..4 */
    uint8_t nbytes;                          /* 0..24 */
    uint8_t flags;                           /* TKR_CQE_* */
    uint64_t user;
    uint32_t pos;                            /* TOKEN: output position of tok[0] (of the next id when ntok is 0) */
    uint16_t tag;
    uint16_t status;                         /* DONE: enum tkr_status */
    union {
        struct {
            uint32_t tok[4];
            uint8_t utf8[24];
        } token;
        struct {
            uint32_t off, bytes, count;      /* off counts from bulk_off; valid until the request is released */
            uint16_t type, dim;              /* enum tkr_bulk_type */
            uint8_t reserved[24];
        } bulk;
        struct {
            uint32_t id[4];
            float lp[4];
            uint8_t reserved[8];
        } logprob;
        struct {
            uint32_t done, total;
            uint8_t reserved[32];
        } progress;
    } u;
};
enum tkr_bulk_type {
    TKR_BULK_U32 = 1,
    TKR_BULK_F32 = 2
};
TKR_ABI_AT(struct tkr_cqe, kind, 0x04);
TKR_ABI_AT(struct tkr_cqe, user, 0x08);
TKR_ABI_AT(struct tkr_cqe, pos, 0x10);
TKR_ABI_AT(struct tkr_cqe, tag, 0x14);
TKR_ABI_AT(struct tkr_cqe, status, 0x16);
TKR_ABI_AT(struct tkr_cqe, u.token.tok, 0x18);
TKR_ABI_AT(struct tkr_cqe, u.token.utf8, 0x28);
TKR_ABI_AT(struct tkr_cqe, u.bulk.type, 0x24);
TKR_ABI_AT(struct tkr_cqe, u.logprob.lp, 0x28);
TKR_ABI_ASSERT(sizeof(struct tkr_cqe) == 64);

/* ---- result record: one per tag at T.res_off, complete before the terminal CQE's seq ---------- */
enum tkr_stamp {                             /* CLOCK_MONOTONIC, ns; 0 = that stage was not reached */
    TKR_STAMP_SUBMIT = 0,                    /* the client's own stamp from the parameter block, or 0 */
    TKR_STAMP_SEEN = 1,
    TKR_STAMP_ADMITTED = 2,
    TKR_STAMP_PREFILL = 3,                   /* its first row entered a step */
    TKR_STAMP_FIRST = 4,                     /* first token generated */
    TKR_STAMP_LAST = 5,
    TKR_STAMP_DONE = 6,
    TKR_STAMPS = 7
};

struct tkr_result {
    uint64_t user;
    uint16_t status;
    uint8_t finish;                          /* enum tkr_finish */
    uint8_t served;                          /* 0 = as asked */
    uint16_t model, adapter;
    uint32_t prompt, cached, output, discarded; /* tokens */
    uint64_t retry_after_ns;
    uint64_t seed;
    uint64_t session;
    uint8_t model_hash[32];
    uint64_t stamp[TKR_STAMPS];
    uint64_t have, want;                     /* the limit that was hit and what was asked for */
    uint32_t bulk_off, bulk_len;
    char message[80];                        /* what was wrong, where, what to do; NUL-terminated */
    uint8_t reserved[8];
};
TKR_ABI_AT(struct tkr_result, status, 0x08);
TKR_ABI_AT(struct tkr_result, finish, 0x0a);
TKR_ABI_AT(struct tkr_result, served, 0x0b);
TKR_ABI_AT(struct tkr_result, model, 0x0c);
TKR_ABI_AT(struct tkr_result, prompt, 0x10);
TKR_ABI_AT(struct tkr_result, retry_after_ns, 0x20);
TKR_ABI_AT(struct tkr_result, seed, 0x28);
TKR_ABI_AT(struct tkr_result, session, 0x30);
TKR_ABI_AT(struct tkr_result, model_hash, 0x38);
TKR_ABI_AT(struct tkr_result, stamp, 0x58);
TKR_ABI_AT(struct tkr_result, have, 0x90);
TKR_ABI_AT(struct tkr_result, bulk_off, 0xa0);
TKR_ABI_AT(struct tkr_result, message, 0xa8);
TKR_ABI_ASSERT(sizeof(struct tkr_result) == 256);

/* ---- parameter block in the arena: a head, then n_tail entries -------------------------------- */
struct tkr_param {
    uint16_t head_len;                       /* 128 */
    uint16_t n_tail;                         /* 0..64 */
    uint32_t flags;                          /* TKR_PARAM_* */
    uint64_t tenant;
    uint64_t seed;                           /* with TKR_PARAM_SEED; else the daemon draws one and reports it */
    uint64_t submit_ns;                      /* CLOCK_MONOTONIC at submit, or 0 */
    uint64_t session2;
    uint64_t prefix;
    uint32_t grammar, labels;
    uint32_t model_gen;                      /* 0, or the gen that the model entry must have: MISMATCH */
    uint16_t adapter;
    uint8_t on_late;                         /* enum tkr_on_late */
    uint8_t pooling;
    uint32_t pos;
    uint32_t resume_bytes;
    uint8_t n_logprobs;
    uint8_t emit;
    uint16_t reserved0;
    uint32_t top_k;                          /* 0 = off */
    float temperature;                       /* 0 = greedy; 0..100 */
    float top_p;                             /* 0 or 1 = off; 0..1 */
    float min_p;                             /* 0 = off; 0..1 */
    float repeat, presence, frequency;
    uint8_t reserved[24];
};
#define TKR_PARAM_SEED 1u
#define TKR_PARAM_IGNORE_EOS 2u              /* an end-of-sequence token does not end the request */
TKR_ABI_AT(struct tkr_param, flags, 0x04);
TKR_ABI_AT(struct tkr_param, tenant, 0x08);
TKR_ABI_AT(struct tkr_param, seed, 0x10);
TKR_ABI_AT(struct tkr_param, submit_ns, 0x18);
TKR_ABI_AT(struct tkr_param, session2, 0x20);
TKR_ABI_AT(struct tkr_param, prefix, 0x28);
TKR_ABI_AT(struct tkr_param, grammar, 0x30);
TKR_ABI_AT(struct tkr_param, model_gen, 0x38);
TKR_ABI_AT(struct tkr_param, adapter, 0x3c);
TKR_ABI_AT(struct tkr_param, on_late, 0x3e);
TKR_ABI_AT(struct tkr_param, pooling, 0x3f);
TKR_ABI_AT(struct tkr_param, pos, 0x40);
TKR_ABI_AT(struct tkr_param, resume_bytes, 0x44);
TKR_ABI_AT(struct tkr_param, n_logprobs, 0x48);
TKR_ABI_AT(struct tkr_param, emit, 0x49);
TKR_ABI_AT(struct tkr_param, top_k, 0x4c);
TKR_ABI_AT(struct tkr_param, temperature, 0x50);
TKR_ABI_AT(struct tkr_param, repeat, 0x5c);
TKR_ABI_AT(struct tkr_param, reserved, 0x68);
TKR_ABI_ASSERT(sizeof(struct tkr_param) == 128);

struct tkr_tail {
    uint16_t kind;                           /* enum tkr_tail_kind */
    uint16_t flags;                          /* MESSAGE: enum tkr_role; else 0 */
    uint32_t off;                            /* relative to arena_off */
    uint32_t bytes;                          /* MESSAGE, STOP_TEXT: length; ids: 4 * count */
    uint32_t count;                          /* ids: how many; text: 0 */
};
TKR_ABI_ASSERT(sizeof(struct tkr_tail) == 16);

/* ---- control socket: SOCK_SEQPACKET, one fixed-size message a datagram ------------------------ */
/*
 *   client                       daemon
 *   HELLO                  ->
 *                          <-    WELCOME (+ T's descriptor)    or REFUSED
 *   ATTACH (+ R's fd)      ->
 *                          <-    READY                         or REFUSED
 * Afterwards the socket carries doorbells, one byte of value 1 each: the daemon's for a wait by socket,
 * the client's where WELCOME says TKR_DOORBELL_SOCKET. A REFUSED may still come, before the hang-up.
 */
enum tkr_ctl_type {
    TKR_CTL_HELLO = 1,
    TKR_CTL_WELCOME = 2,
    TKR_CTL_ATTACH = 3,
    TKR_CTL_READY = 4,
    TKR_CTL_REFUSED = 5
};

struct tkr_ctl_head {
    uint32_t magic;                          /* TKR_MAGIC_CTL */
    uint16_t type;                           /* enum tkr_ctl_type */
    uint16_t bytes;                          /* of the whole message: 256 */
    uint16_t major, minor;
    uint32_t reserved;
};
TKR_ABI_ASSERT(sizeof(struct tkr_ctl_head) == 16);

struct tkr_hello {
    struct tkr_ctl_head head;
    uint64_t features;
    uint64_t arena_len;                      /* wanted sizes; WELCOME says what is granted */
    uint64_t bulk_len;
    uint32_t nsq, sq_log2, cq_log2, max_inflight;
    uint32_t class_;                         /* highest enum tkr_class that it will use */
    uint32_t reserved0;
    char library[32];                        /* library and version, NUL-terminated, for the operator */
    uint8_t reserved[160];
};
TKR_ABI_AT(struct tkr_hello, features, 0x10);
TKR_ABI_AT(struct tkr_hello, nsq, 0x28);
TKR_ABI_AT(struct tkr_hello, library, 0x40);
TKR_ABI_ASSERT(sizeof(struct tkr_hello) == 256);

enum tkr_doorbell {                          /* how a PARKED queue is rung */
    TKR_DOORBELL_FUTEX = 0,
    TKR_DOORBELL_SOCKET = 1
};

struct tkr_welcome {
    struct tkr_ctl_head head;
    uint64_t features;                       /* granted */
    uint64_t arena_len, bulk_len;            /* granted: R must be laid out with exactly these */
    uint32_t nsq, sq_log2, cq_log2, max_inflight;
    uint32_t colour;
    uint32_t doorbell;                       /* enum tkr_doorbell */
    uint64_t t_region_len;
    uint64_t client_id;
    uint64_t daemon_epoch;
    int32_t daemon_pid;
    uint32_t reserved0;
    uint8_t reserved[160];
};
TKR_ABI_AT(struct tkr_welcome, features, 0x10);
TKR_ABI_AT(struct tkr_welcome, nsq, 0x28);
TKR_ABI_AT(struct tkr_welcome, t_region_len, 0x40);
TKR_ABI_AT(struct tkr_welcome, daemon_pid, 0x58);
TKR_ABI_ASSERT(sizeof(struct tkr_welcome) == 256);

struct tkr_attach {
    struct tkr_ctl_head head;
    uint64_t region_len;
    uint32_t flags;                          /* TKR_ATTACH_RESUME: reserved in this version, 0 */
    uint32_t reserved0;
    uint32_t sq_pos[TKR_NSQ_MAX];            /* on resume: first position that the daemon reads */
    uint8_t reserved[192];
};
TKR_ABI_AT(struct tkr_attach, region_len, 0x10);
TKR_ABI_AT(struct tkr_attach, sq_pos, 0x20);
TKR_ABI_ASSERT(sizeof(struct tkr_attach) == 256);

struct tkr_ready {
    struct tkr_ctl_head head;
    uint8_t reserved[240];
};
TKR_ABI_ASSERT(sizeof(struct tkr_ready) == 256);

enum tkr_refusal {
    TKR_REFUSED_VERSION = 1,                 /* major differs */
    TKR_REFUSED_MESSAGE = 2,                 /* malformed message, wrong order, reserved bytes set */
    TKR_REFUSED_PEER = 3,                    /* this uid may not attach */
    TKR_REFUSED_LIMIT = 4,                   /* clients, memory or another quota: have, want */
    TKR_REFUSED_FD = 5,                      /* not exactly one descriptor, or not a memfd */
    TKR_REFUSED_SEALS = 6,                   /* have: the seals found, want: those demanded */
    TKR_REFUSED_FILESYSTEM = 7,              /* not tmpfs (hugetlbfs, FUSE, disk) */
    TKR_REFUSED_SIZE = 8,                    /* have: the size found, want: the size announced */
    TKR_REFUSED_HOLES = 9,                   /* not fully populated: have is the first hole's offset */
    TKR_REFUSED_REUSED = 10,                 /* a region that is attached already, or one of the daemon's own */
    TKR_REFUSED_LAYOUT = 11,                 /* R's header is not a layout that WELCOME allows */
    TKR_REFUSED_MLOCK = 12,
    TKR_REFUSED_DRAIN = 13,
    TKR_REFUSED_INTERNAL = 14,
    TKR_REFUSED_STRIKES = 15                 /* after READY, then the hang-up: too many malformed slots */
};

struct tkr_refused {
    struct tkr_ctl_head head;
    uint16_t reason;                         /* enum tkr_refusal */
    uint16_t reserved0;
    uint32_t reserved1;
    uint64_t have, want;
    char message[128];                       /* NUL-terminated */
    uint8_t reserved[88];
};
TKR_ABI_AT(struct tkr_refused, reason, 0x10);
TKR_ABI_AT(struct tkr_refused, have, 0x18);
TKR_ABI_AT(struct tkr_refused, message, 0x28);
TKR_ABI_ASSERT(sizeof(struct tkr_refused) == 256);

#endif
