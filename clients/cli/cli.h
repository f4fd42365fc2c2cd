/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli.h - what the commands of `tokenring` share: input, one request's life, output.
 *
 * Exit codes: 0 done, 1 a request ended with an error status, or input that cannot be used,
 * 2 wrong command line, 3 no daemon, 130 interrupted.
 */
#ifndef CLIENTS_CLI_CLI_H
#define CLIENTS_CLI_CLI_H

#include <argp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <tokenring/tokenring.h>

enum cli_exit {
    CLI_OK = 0,
    CLI_FAILED = 1,
    CLI_USAGE = 2,
    CLI_NO_DAEMON = 3,
    CLI_INTERRUPTED = 130
};

/* Commands: argv[0] is "tokenring NAME". They return an exit code. */
int run_main(int argc, char **argv);
int tokenize_main(int argc, char **argv);
int perplexity_main(int argc, char **argv);
int models_main(int argc, char **argv);

/* "tokenring: " and the text on stderr. */
__attribute__((format(printf, 1, 2))) void complain(const char *format, ...);

/* ---- options.c ------------------------------------------------------------------------------- */
#define OPTION_SOCKET 0x100
#define OPTION_SOCKET_HELP                                                                         \
    {                                                                                              \
        "socket", OPTION_SOCKET, "PATH", 0,                                                        \
            "The daemon's socket (else TOKENRING_SOCKET, $XDG_RUNTIME_DIR/tokenring/socket, "      \
            "/run/tokenring/socket, /tmp/tokenring-UID/socket)",                                   \
            0                                                                                      \
    }

/* These end the program with a usage message when the argument is not what they want. */
uint32_t option_u32(struct argp_state *state, const char *name, const char *arg, uint32_t min);
uint64_t option_u64(struct argp_state *state, const char *name, const char *arg);
float option_float(struct argp_state *state, const char *name, const char *arg, float max);

/* ---- input.c --------------------------------------------------------------------------------- */
struct input {
    char *text; /* len bytes and a NUL; NULL with messages */
    size_t len;
    tkr_msg *msgs; /* n_msgs; texts belong to json */
    uint32_t n_msgs;
    void *json;
    size_t bytes; /* of all texts */
};

/* The argument's own bytes, or all of standard input for "-". 0, or -1 with a complaint. */
int input_argument(struct input *ret_input, const char *argument);
int input_file(struct input *ret_input, const char *path);
/* [{"role": ..., "content": ...}, ...] of a file, "-" is standard input. 0, or -1 with a complaint. */
int input_messages(struct input *ret_input, const char *path);
void input_free(struct input *input);

/* ---- session.c ------------------------------------------------------------------------------- */
struct session {
    tkr_conn *conn;
    tkr_limits limits;
};

/* Room for arena_bytes of prompts and n_ids token ids in results. With reconnect a request goes on when
 * the daemon was restarted. An exit code. */
int session_open(struct session *ret_session, const char *socket, size_t arena_bytes, size_t n_ids,
                 int reconnect);
void session_close(struct session *session);
/* Submits one request that must fit. An exit code. */
int session_submit(struct session *session, tkr_req *req);
/* Up to n events, 0 from time to time so that a Ctrl-C is seen. < 0: lost, complained about. */
int session_wait(struct session *session, tkr_event *events, unsigned n);
int session_interrupted(void);
/* Says how a request ended that is not OK. The exit code. */
int session_failed(const tkr_event *done);
/* Prompt of a request: messages, or text with this data_kind. */
void session_prompt(tkr_req *req, const struct input *input, enum tkr_data_kind text_kind);

/* ---- tokenize.c ------------------------------------------------------------------------------ */
struct buffer;
/* Adds the ids of the input to *ret_ids. An exit code. */
int session_tokenize(struct session *session, const struct input *input, struct buffer *ret_ids);

/* ---- output.c -------------------------------------------------------------------------------- */
/* Bytes that grow. */
struct buffer {
    char *bytes;
    size_t len, room;
};
void buffer_add(struct buffer *buffer, const void *bytes, size_t n);

/* A JSON string; what is not UTF-8 becomes U+FFFD. */
void json_text(FILE *out, const char *text, size_t len);
void json_ids(FILE *out, const uint32_t *ids, size_t n);
/* Flushes stdout: CLI_OK, or CLI_FAILED with a complaint when it could not be written. */
int output_end(void);

#endif
