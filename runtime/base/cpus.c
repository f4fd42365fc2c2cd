/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/base/cpus.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void cpus_name(char *ret_name, size_t bytes)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];

    snprintf(ret_name, bytes, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');

        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value++;
        value += strspn(value, " ");
        value[strcspn(value, "\n")] = '\0';
        snprintf(ret_name, bytes, "%s", value);
        break;
    }
    if (file)
        fclose(file);
}

/* ---- which may be used ----------------------------------------------------------------------- */

/* The first line of a file of a control group; 0 when there is none. */
static int group_line(const char *folder, const char *name, char ret_text[64])
{
    char path[4200];
    FILE *file;
    int found;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "re");
    if (!file)
        return 0;
    found = fgets(ret_text, 64, file) != NULL;
    fclose(file);
    return found;
}

/* CPUs that one group's own quota grants, rounded up; UINT32_MAX without a limit. Version 2 has
 * cpu.max, "QUOTA PERIOD" or "max PERIOD" in us; version 1 a file for each, quota -1 without a limit
 * (Linux, Documentation/admin-guide/cgroup-v2.rst and Documentation/scheduler/sched-bwc.rst). */
static unsigned group_cpus(const char *folder)
{
    long long quota = -1, period = 0;
    char text[64];

    if (group_line(folder, "cpu.max", text))
        (void)sscanf(text, "%lld %lld", &quota, &period);
    else if (group_line(folder, "cpu.cfs_quota_us", text) && sscanf(text, "%lld", &quota) == 1 &&
             group_line(folder, "cpu.cfs_period_us", text))
        (void)sscanf(text, "%lld", &period);
    if (quota < 0 || period <= 0)
        return UINT32_MAX;
    quota = quota / period + (quota % period != 0);
    return quota < 1 ? 1 : quota > UINT32_MAX ? UINT32_MAX : (unsigned)quota;
}

/* Where a line of /proc/self/cgroup, "NUMBER:CONTROLLERS:/PATH", has its files below root, if it is
 * about CPU time: version 2 (number 0, no controllers), or version 1 with cpu among them. */
static int group_folder(char *ret_folder, size_t size, char *line, const char *root)
{
    char *controllers = strchr(line, ':'), *path;
    char list[128];

    path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path || path[1] != '/')
        return 0;
    *path++ = '\0';
    controllers++;
    if (controllers[0] == '\0') {
        snprintf(ret_folder, size, "%s%s", root, path);
        return 1;
    }
    snprintf(list, sizeof list, ",%s,", controllers);
    if (!strstr(list, ",cpu,"))
        return 0;
    snprintf(ret_folder, size, "%s/%s%s", root, controllers, path);
    return 1;
}

unsigned cpus_of_groups(const char *self, const char *root)
{
    char line[4096], folder[4160];
    unsigned least = UINT32_MAX;
    size_t root_n = strlen(root);
    FILE *file = fopen(self, "re");

    if (!file)
        return UINT32_MAX;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        if (!group_folder(folder, sizeof folder, line, root))
            continue;
        /* A limit holds for everything below it, so each folder up to the root has a say. */
        for (;;) {
            unsigned cpus = group_cpus(folder);
            char *slash = strrchr(folder, '/');

            if (cpus < least)
                least = cpus;
            if (!slash || (size_t)(slash - folder) < root_n)
                break;
            *slash = '\0';
        }
    }
    fclose(file);
    return least;
}

unsigned cpus_allowed(void)
{
    unsigned quota = cpus_of_groups("/proc/self/cgroup", "/sys/fs/cgroup");
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned n = online > 0 ? (unsigned)online : 1;
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        n = (unsigned)CPU_COUNT(&set);
    return n < quota ? n : quota;
}

/* ---- in which order -------------------------------------------------------------------------- */

struct cpu {
    uint16_t number, core; /* core: its first CPU */
    uint8_t node;
    uint8_t rank; /* allowed CPUs of the same core before this one */
};

/* The first CPU of the list of those that share its core, "0,64" or "0-1"; itself without one. */
static uint16_t core_of(const char *root, unsigned cpu)
{
    char path[4200];
    unsigned first;
    FILE *file;

    snprintf(path, sizeof path, "%s/cpu%u/topology/thread_siblings_list", root, cpu);
    file = fopen(path, "re");
    if (!file)
        return (uint16_t)cpu;
    if (fscanf(file, "%u", &first) != 1 || first > cpu)
        first = cpu;
    fclose(file);
    return (uint16_t)first;
}

/* Its folder has a link to its memory node, "node3". */
static uint8_t node_of(const char *root, unsigned cpu)
{
    const struct dirent *entry;
    unsigned node = 0;
    char path[4200];
    DIR *folder;

    snprintf(path, sizeof path, "%s/cpu%u", root, cpu);
    folder = opendir(path);
    if (!folder)
        return 0;
    while ((entry = readdir(folder)))
        if (sscanf(entry->d_name, "node%u", &node) == 1)
            break;
    closedir(folder);
    return (uint8_t)(node < CPUS_NODES_MAX ? node : CPUS_NODES_MAX - 1);
}

/* Ranks first, then the nodes with most cores, then numbers. */
struct sorting {
    struct cpu cpu;
    unsigned node_cores;
};

static int compare(const void *a, const void *b)
{
    const struct sorting *x = a, *y = b;

    if (x->cpu.rank != y->cpu.rank)
        return x->cpu.rank < y->cpu.rank ? -1 : 1;
    if (x->node_cores != y->node_cores)
        return x->node_cores > y->node_cores ? -1 : 1;
    if (x->cpu.node != y->cpu.node)
        return x->cpu.node < y->cpu.node ? -1 : 1;
    return x->cpu.number < y->cpu.number ? -1 : 1;
}

void cpus_order(struct cpus_order *ret_order, const cpu_set_t *allowed, const char *root)
{
    static const struct cpus_order none;
    struct sorting list[CPU_SETSIZE];
    unsigned cores[CPUS_NODES_MAX] = {0};
    uint8_t seen[CPU_SETSIZE] = {0}; /* allowed CPUs of the core, by its first CPU */
    unsigned n = 0;

    *ret_order = none;
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        struct cpu *c = &list[n].cpu;

        if (!CPU_ISSET(cpu, allowed))
            continue;
        *c = (struct cpu){(uint16_t)cpu, core_of(root, cpu), node_of(root, cpu), 0};
        c->rank = seen[c->core] < UINT8_MAX ? seen[c->core]++ : UINT8_MAX;
        if (c->rank == 0) {
            cores[c->node]++;
            ret_order->n_cores++;
        }
        n++;
    }
    for (unsigned i = 0; i < n; i++)
        list[i].node_cores = cores[list[i].cpu.node];
    qsort(list, n, sizeof list[0], compare);
    ret_order->n = n;
    for (unsigned i = 0; i < n; i++) {
        ret_order->cpus[i] = list[i].cpu.number;
        ret_order->nodes[i] = list[i].cpu.node;
    }
}

uint64_t cpus_order_nodes(const struct cpus_order *order, unsigned n)
{
    uint64_t nodes = 0;

    for (unsigned i = 0; i < n && i < order->n; i++)
        nodes |= 1ull << order->nodes[i];
    return nodes;
}
