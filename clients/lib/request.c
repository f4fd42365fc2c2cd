/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - requests with the usual values filled in.
 */
#include <string.h>
#include <tokenring/tokenring.h>

#define MAX_TOKENS_USUAL 512u

void tkr_req_init(tkr_req *req, int op)
{
    *req = (tkr_req){.size = sizeof *req, .op = (uint8_t)op};
}

static tkr_req req_generate(int data_kind, const char *text)
{
    tkr_req req;

    tkr_req_init(&req, TKR_OP_GENERATE);
    req.data_kind = (uint8_t)data_kind;
    req.text = text;
    req.len = text ? strlen(text) : 0;
    req.max_tokens = MAX_TOKENS_USUAL;
    return req;
}

tkr_req tkr_req_chat(const char *text)
{
    return req_generate(TKR_DATA_MESSAGES, text);
}

tkr_req tkr_req_text(const char *text)
{
    return req_generate(TKR_DATA_TEXT, text);
}
