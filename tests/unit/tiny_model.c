/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/tiny_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[2048], folder[64];

static void fail(const char *what)
{
    perror(what);
    abort();
}

static void run(char *const argv[])
{
    int status;
    pid_t pid = fork();

    if (pid < 0)
        fail("fork");
    if (pid == 0) {
        execvp(argv[0], argv);
        _exit(127);
    }
    if (waitpid(pid, &status, 0) < 0 || status != 0) {
        fprintf(stderr, "%s %s failed\n", argv[0], argv[1]);
        abort();
    }
}

static void python(char *script)
{
    char *argv[] = {(char[]){"python3"}, (char[]){"-Bc"}, script, root, folder, NULL};

    run(argv);
}

void tiny_init(const char *source_root)
{
    snprintf(root, sizeof root, "%s/tests/tools", source_root);
    snprintf(folder, sizeof folder, "/tmp/tkr-tiny-XXXXXX");
    if (!mkdtemp(folder))
        fail(folder);
}

void tiny_fini(void)
{
    char *argv[] = {(char[]){"rm"}, (char[]){"-r"}, folder, NULL};

    run(argv);
}

const char *tiny_folder(void)
{
    return folder;
}

const char *tiny_model(const char *options, const char *edit)
{
    static char path[128], script[8192];

    snprintf(path, sizeof path, "%s/tiny-%d.gguf", folder, (int)getpid());
    snprintf(script, sizeof script,
             "import sys; sys.path.insert(0, sys.argv[1]); import make_gguf as m; true = True\n"
             "f = m.make_file(%s)\n"
             "%s\n"
             "open('%s', 'wb').write(f.bytes())\n",
             options, edit, path);
    python(script);
    return path;
}

void tiny_broken(void)
{
    static char script[] =
        "import sys; sys.path.insert(0, sys.argv[1]); import make_gguf as m\n"
        "for name in m.BROKEN:\n"
        "    open('%s/%s.gguf' % (sys.argv[2], name), 'wb').write(m.make_broken(name))\n"
        "with open(sys.argv[2] + '/list.txt', 'w') as out:\n"
        "    for name, (case, says, _) in m.BROKEN.items():\n"
        "        print(name, case, says, sep='\\t', file=out)\n";

    python(script);
}

unsigned char *tiny_read(const char *path, size_t *ret_n)
{
    FILE *file = fopen(path, "re");
    unsigned char *bytes = NULL;
    long n = 0;

    if (!file || fseek(file, 0, SEEK_END) < 0 || (n = ftell(file)) < 0 ||
        fseek(file, 0, SEEK_SET) < 0)
        fail(path);
    bytes = malloc((size_t)n + 1);
    if (!bytes || fread(bytes, 1, (size_t)n, file) != (size_t)n)
        fail(path);
    fclose(file);
    *ret_n = (size_t)n;
    return bytes;
}
