/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ringctl.h - what the commands of `ringctl` share.
 */
#ifndef TOOLS_RINGCTL_H
#define TOOLS_RINGCTL_H

enum ringctl_exit {
    RINGCTL_OK = 0,
    RINGCTL_FAILED = 1, /* said on standard error */
    RINGCTL_USAGE = 2
};

/* Commands: argv[0] is "ringctl NAME". They return an exit code. */
int tune_main(int argc, char **argv);

/* "ringctl: " and the text on standard error. */
__attribute__((format(printf, 1, 2))) void complain(const char *format, ...);

#endif
