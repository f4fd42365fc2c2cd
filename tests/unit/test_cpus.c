/* SPDX-License-Identifier: Apache-2.0 */
/* Control groups and topologies as the kernel shows them, written by this test. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "runtime/base/cpus.h"

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[256];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static void make_folder(char ret_path[64], const char *root, const char *name)
{
    snprintf(ret_path, 64, "%s/%s", root, name);
    ck_assert_int_eq(mkdir(ret_path, 0700), 0);
}

static void remove_folder(const char *root)
{
    char command[64];

    snprintf(command, sizeof command, "rm -r %s", root);
    ck_assert_int_eq(system(command), 0);
}

/* Format of cpu.max and of /proc/self/cgroup: the kernel's Documentation/admin-
 * guide/cgroup-v2.rst */
START_TEST(the_tightest_quota_on_the_way_to_the_root_counts)
{
    static const struct {
        const char *outer, *inner;
        unsigned cpus;
    } cases[] = {
        {"max 100000\n", "max 100000\n", UINT32_MAX},
        {"max 100000\n", "200000 100000\n", 2},
        {"100000 100000\n", "400000 100000\n", 1},
        {"max 100000\n", "150000 100000\n", 2}, /* one and a half: two threads have work */
        {"max 100000\n", "5000 100000\n", 1},
        {"nonsense\n", "", UINT32_MAX},
        {"200000 0\n", "200000\n", UINT32_MAX},
    };
    char root[] = "/tmp/tkr-cgroup-XXXXXX", folder[64], outer[64], self[64];

    ck_assert_ptr_nonnull(mkdtemp(root));
    make_folder(outer, root, "a");
    make_folder(folder, root, "a/b");
    write_file(root, "self", "4:memory:/other\n0::/a/b\n");
    snprintf(self, sizeof self, "%s/self", root);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file(outer, "cpu.max", cases[i].outer);
        write_file(folder, "cpu.max", cases[i].inner);
        ck_assert_uint_eq(cpus_of_groups(self, root), cases[i].cpus);
    }
    ck_assert_uint_eq(cpus_of_groups("/nowhere", root), UINT32_MAX);
    remove_folder(root);
}
END_TEST

/* Files of version 1: the kernel's Documentation/scheduler/sched-bwc.rst; lines of
 * /proc/self/cgroup: cgroups(7). */
START_TEST(quotas_of_the_first_version_of_control_groups_count_too)
{
    static const struct {
        const char *outer, *inner, *self;
        unsigned cpus;
    } cases[] = {
        {"-1\n", "-1\n", "3:cpu,cpuacct:/a\n0::/\n", UINT32_MAX},
        {"-1\n", "200000\n", "3:cpu,cpuacct:/a\n0::/\n", 4},
        {"-1\n", "120000\n", "3:cpu,cpuacct:/a\n", 3}, /* 2.4 */
        {"50000\n", "200000\n", "3:cpu,cpuacct:/a\n", 1},
        {"-1\n", "nonsense\n", "3:cpu,cpuacct:/a\n", UINT32_MAX},
        /* In a container the path is the host's, and the group itself is the root that is seen. */
        {"100000\n", "-1\n", "3:cpu,cpuacct:/docker/0123\n", 2},
        /* Not about CPU time, or not a line of that file. */
        {"50000\n", "50000\n", "3:cpuset:/a\n4:cpuacct:/a\ncpu,cpuacct\n:\n", UINT32_MAX},
    };
    char root[] = "/tmp/tkr-cgroup-XXXXXX", outer[64], folder[64], self[64];

    ck_assert_ptr_nonnull(mkdtemp(root));
    make_folder(outer, root, "cpu,cpuacct");
    make_folder(folder, root, "cpu,cpuacct/a");
    write_file(outer, "cpu.cfs_period_us", "50000\n");
    write_file(folder, "cpu.cfs_period_us", "50000\n");
    snprintf(self, sizeof self, "%s/self", root);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_file(outer, "cpu.cfs_quota_us", cases[i].outer);
        write_file(folder, "cpu.cfs_quota_us", cases[i].inner);
        write_file(root, "self", cases[i].self);
        ck_assert_uint_eq(cpus_of_groups(self, root), cases[i].cpus);
    }
    remove_folder(root);
}
END_TEST

/* ---- the order of CPUs ----------------------------------------------------------------------- */

#define CPUS 8

/* A machine: of each CPU who shares its core, as thread_siblings_list tells it (the kernel's
 * Documentation/ABI/stable/sysfs-devices-system-cpu), or NULL without a file; its node, or -1. */
struct machine {
    const char *siblings[CPUS];
    int nodes[CPUS];
    const char *allowed; /* a letter for each CPU: x */
    const char *order;   /* expected: CPUs by digits */
    unsigned n_cores;
    uint64_t nodes_of_two, nodes_of_all; /* bitmaps: of the first two CPUs, of all */
};

static const struct machine machines[] = {
    /* Siblings beside each other, as clouds number them. */
    {{"0-1", "0-1", "2-3", "2-3"}, {0, 0, 0, 0}, "xxxx", "0213", 2, 1, 1},
    /* Siblings far apart, as most machines number them. */
    {{"0,2", "1,3", "0,2", "1,3"}, {0, 0, 0, 0}, "xxxx", "0123", 2, 1, 1},
    /* The first of a core is not allowed: the other stands for it. */
    {{"0-1", "0-1", "2-3", "2-3"}, {0, 0, 0, 0}, ".xxx", "123", 2, 1, 1},
    {{"0-1", "0-1", "2-3", "2-3"}, {0, 0, 0, 0}, "xx..", "01", 1, 1, 1},
    /* Four to a core. */
    {{"0-3", "0-3", "0-3", "0-3", "4-7", "4-7", "4-7", "4-7"},
     {0, 0, 0, 0, 0, 0, 0, 0},
     "xxxxxxxx",
     "04152637",
     2,
     1,
     1},
    /* No threads of one core. */
    {{"0", "1", "2"}, {0, 0, 0}, "xxx", "012", 3, 1, 1},
    /* Nothing is told, or nonsense: each is its own core, on node 0. */
    {{NULL, NULL, "", "x", "-1", "9999999999"},
     {-1, -1, -1, -1, -1, -1},
     "xxxxxx",
     "012345",
     6,
     1,
     1},
    /* The larger node first, though its numbers are higher. */
    {{"0", "1", "2", "3", "4"}, {0, 0, 1, 1, 1}, "xxxxx", "23401", 5, 2, 3},
    /* As large: the lower one. One core of each before any second thread. */
    {{"0-1", "0-1", "2-3", "2-3", "4-5", "4-5", "6-7", "6-7"},
     {1, 1, 1, 1, 0, 0, 0, 0},
     "xxxxxxxx",
     "46025713",
     4,
     1,
     3},
    /* What is not allowed makes no node large. */
    {{"0", "1", "2", "3", "4"}, {0, 0, 1, 1, 1}, "xxx..", "012", 3, 1, 3},
    {{"0", "1"}, {63, 64}, "xx", "01", 2, 1ull << 63, 1ull << 63},
};

static void machine_make(const struct machine *machine, const char *root)
{
    for (int cpu = 0; cpu < CPUS && machine->allowed[cpu]; cpu++) {
        char name[32], folder[64];

        snprintf(name, sizeof name, "cpu%d", cpu);
        make_folder(folder, root, name);
        snprintf(name, sizeof name, "cpu%d/topology", cpu);
        make_folder(folder, root, name);
        if (machine->siblings[cpu])
            write_file(folder, "thread_siblings_list", machine->siblings[cpu]);
        snprintf(name, sizeof name, "cpu%d/node%d", cpu, machine->nodes[cpu]);
        if (machine->nodes[cpu] >= 0)
            make_folder(folder, root, name);
    }
}

START_TEST(threads_take_one_cpu_of_each_core_first_and_few_nodes)
{
    const struct machine *machine = &machines[_i];
    char root[] = "/tmp/tkr-cpus-XXXXXX", order[CPUS + 1] = "";
    static struct cpus_order got;
    cpu_set_t allowed;

    ck_assert_ptr_nonnull(mkdtemp(root));
    machine_make(machine, root);
    CPU_ZERO(&allowed);
    for (size_t cpu = 0; machine->allowed[cpu]; cpu++)
        if (machine->allowed[cpu] == 'x')
            CPU_SET(cpu, &allowed);
    cpus_order(&got, &allowed, root);
    ck_assert_uint_le(got.n, CPUS);
    for (unsigned i = 0; i < got.n; i++)
        order[i] = (char)('0' + got.cpus[i]);
    ck_assert_str_eq(order, machine->order);
    ck_assert_uint_eq(got.n_cores, machine->n_cores);
    ck_assert_uint_eq(cpus_order_nodes(&got, 0), 0);
    ck_assert_uint_eq(cpus_order_nodes(&got, 2), machine->nodes_of_two);
    ck_assert_uint_eq(cpus_order_nodes(&got, got.n), machine->nodes_of_all);
    ck_assert_uint_eq(cpus_order_nodes(&got, 1000), machine->nodes_of_all);
    remove_folder(root);
}
END_TEST

START_TEST(without_a_cpu_there_is_no_order)
{
    static struct cpus_order got;
    cpu_set_t none;

    CPU_ZERO(&none);
    cpus_order(&got, &none, "/nowhere");
    ck_assert_uint_eq(got.n, 0);
    ck_assert_uint_eq(got.n_cores, 0);
    ck_assert_uint_eq(cpus_order_nodes(&got, 4), 0);
}
END_TEST

START_TEST(the_order_of_this_machine_has_each_allowed_cpu_once)
{
    static struct cpus_order got;
    cpu_set_t allowed, seen;

    ck_assert_int_eq(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    cpus_order(&got, &allowed, "/sys/devices/system/cpu");
    ck_assert_uint_eq(got.n, (unsigned)CPU_COUNT(&allowed));
    ck_assert_uint_ge(got.n_cores, 1);
    ck_assert_uint_le(got.n_cores, got.n);
    CPU_ZERO(&seen);
    for (unsigned i = 0; i < got.n; i++)
        CPU_SET(got.cpus[i], &seen);
    ck_assert(CPU_EQUAL(&seen, &allowed));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cpus");
    TCase *tc = tcase_create("cpus");
    SRunner *sr = srunner_create(suite);
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, the_tightest_quota_on_the_way_to_the_root_counts);
    tcase_add_test(tc, quotas_of_the_first_version_of_control_groups_count_too);
    tcase_add_loop_test(tc, threads_take_one_cpu_of_each_core_first_and_few_nodes, 0,
                        (int)(sizeof machines / sizeof machines[0]));
    tcase_add_test(tc, without_a_cpu_there_is_no_order);
    tcase_add_test(tc, the_order_of_this_machine_has_each_allowed_cpu_once);
    suite_add_tcase(suite, tc);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
