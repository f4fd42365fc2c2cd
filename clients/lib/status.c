/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.c - words for how a request ended and for what a call returned.
 */
#include <errno.h>
#include <tokenring/tokenring.h>

static const char *status_text(int status)
{
    switch ((enum tkr_status)status) {
    case TKR_OK:
        return "ok";
    case TKR_E_INVALID:
        return "invalid request: a field is wrong";
    case TKR_E_UNSUPPORTED:
        return "unsupported: this daemon does not implement the operation or a field that was set";
    case TKR_E_CONTEXT:
        return "context exceeded: prompt and output do not fit into the model's context";
    case TKR_E_DEADLINE:
        return "deadline missed";
    case TKR_E_OVERLOADED:
        return "overloaded: a queue, the pages or a quota is full; try again later";
    case TKR_E_CANCELLED:
        return "cancelled";
    case TKR_E_ABORTED:
        return "aborted: the daemon is stopping; try again later";
    case TKR_E_NUMERIC:
        return "numeric failure: the model gave a value that is not finite";
    case TKR_E_SLOW:
        return "slow reader: the client did not read its events for too long";
    case TKR_E_NO_MODEL:
        return "no such model";
    case TKR_E_MISMATCH:
        return "model mismatch: the daemon's model is not the one that the request names";
    case TKR_E_DENIED:
        return "denied: this user may not do that";
    case TKR_E_DUPLICATE:
        return "duplicate: a request with this tag or id is still alive";
    case TKR_E_INTERNAL:
        return "internal error of the daemon";
    case TKR_E_GONE:
        return "the daemon is gone; open a new connection and try again";
    case TKR_E_RESTARTED:
        return "the daemon restarted; submit again";
    }
    return "unknown status";
}

/* No strerror(): its text depends on the locale and it may allocate. */
static const char *errno_text(int err)
{
    switch (err) {
    case EINVAL:
        return "invalid argument: a field of the request is wrong";
    case EMSGSIZE:
        return "the request is larger than the whole arena; open with more arena_bytes";
    case ENOENT:
        return "not found: no daemon at this socket, or no such request";
    case ECONNREFUSED:
        return "no daemon answers at this socket";
    case EACCES:
        return "refused: this user may not use the daemon";
    case EPROTO:
        return "not a tokenring daemon, or one with another protocol version";
    case EDQUOT:
        return "a limit of the daemon was hit";
    case ETIMEDOUT:
        return "the daemon did not answer in time";
    case ESHUTDOWN:
        return "the daemon is gone; open a new connection";
    case ESTALE:
        return "the connection belongs to the parent process; open a new one after fork";
    case EBUSY:
        return "the request is still alive; read its DONE event first";
    case EAGAIN:
        return "the queue is full; read events, release and try again";
    case EDEADLK:
        return "nothing is in flight, so waiting would never end";
    case ENOMEM:
        return "out of memory";
    case ENOSYS:
        return "the kernel lacks memfd seals (Linux 5.1 or later is needed)";
    case EMFILE:
        return "too many open files";
    case ENAMETOOLONG:
        return "the socket's path is too long";
    case EIO:
        return "the daemon failed to set up the connection";
    default:
        return "system error";
    }
}

const char *tkr_strerror(int error_or_status)
{
    return error_or_status < 0 ? errno_text(-error_or_status) : status_text(error_or_status);
}

int tkr_retryable(int status)
{
    return status > 0 && ((uint32_t)status & TKR_STATUS_RETRY) != 0;
}
