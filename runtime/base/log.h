/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - lines for the journal on standard error: `<N>event key=value ...`. Used by main, the
 * daemon's control part and tools only; libraries never log. Never prompt or reply text.
 */
#ifndef RUNTIME_BASE_LOG_H
#define RUNTIME_BASE_LOG_H

enum log_level { LOG_ERROR = 3, LOG_WARN = 4, LOG_INFO = 6 };

/* The <N> prefix is written only when standard error is the journal's (JOURNAL_STREAM is set). */
__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *format, ...);

#endif
