/* SPDX-License-Identifier: Apache-2.0 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "shm/region.h"

#define BYTES (4 * TKR_PAGE)

static const struct tkr_grant grant_small = {.arena_len = 65536,
                                             .bulk_len = 65536,
                                             .nsq = 1,
                                             .sq_log2 = 6,
                                             .cq_log2 = 8,
                                             .max_inflight = 64};

START_TEST(a_sealed_region_passes_its_peers_check_and_shows_the_owners_bytes)
{
    struct tkr_region owner, peer;
    struct tkr_region_id id, own_id;
    struct tkr_region_fault fault;

    ck_assert_int_eq(tkr_region_create(&owner, BYTES), 0);
    ck_assert_int_eq(tkr_region_seal(&owner), 0);
    ck_assert_int_eq(tkr_region_check(owner.fd, BYTES, &id, &fault), 0);
    ck_assert_int_eq(tkr_region_id(&owner, &own_id), 0);
    ck_assert_uint_eq(id.ino, own_id.ino);
    ck_assert_uint_eq(id.dev, own_id.dev);
    ck_assert_int_eq(tkr_region_map(&peer, owner.fd, BYTES), 0);
    memcpy((char *)owner.base + 5000, "seen", 5);
    ck_assert_str_eq((const char *)peer.base + 5000, "seen");
    tkr_region_close(&peer);
    tkr_region_close(&owner);
    tkr_region_close(&owner); /* twice is allowed */
}
END_TEST

START_TEST(after_the_seals_nobody_can_write_shrink_grow_or_punch_but_through_the_owners_mapping)
{
    struct tkr_region r;

    ck_assert_int_eq(tkr_region_create(&r, BYTES), 0);
    ck_assert_int_eq(tkr_region_seal(&r), 0);
    ck_assert_ptr_eq(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, 0), MAP_FAILED);
    ck_assert_int_eq(ftruncate(r.fd, TKR_PAGE), -1);
    ck_assert_int_eq(ftruncate(r.fd, 2 * BYTES), -1);
    ck_assert_int_eq(fallocate(r.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, TKR_PAGE), -1);
    ck_assert_int_eq((int)write(r.fd, "x", 1), -1);
    ck_assert_int_eq(fcntl(r.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    ck_assert_int_eq(madvise(r.base, TKR_PAGE, MADV_REMOVE), -1);
    ((char *)r.base)[0] = 1;
    tkr_region_close(&r);
}
END_TEST

/* In the child of a fork neither mapping exists: mincore says ENOMEM for unmapped memory (its
 * manual page). */
START_TEST(neither_mapping_is_inherited_by_a_child)
{
    struct tkr_region owner, peer;
    unsigned char vec[4];
    int status;
    pid_t pid;

    ck_assert_int_eq(tkr_region_create(&owner, BYTES), 0);
    ck_assert_int_eq(tkr_region_seal(&owner), 0);
    ck_assert_int_eq(tkr_region_map(&peer, owner.fd, BYTES), 0);
    pid = fork();
    if (!pid)
        _exit((mincore(owner.base, BYTES, vec) == -1 && errno == ENOMEM ? 0 : 1) +
              (mincore(peer.base, BYTES, vec) == -1 && errno == ENOMEM ? 0 : 2));
    waitpid(pid, &status, 0);
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    ck_assert_int_ne(fcntl(owner.fd, F_GETFD) & FD_CLOEXEC, 0);
    tkr_region_close(&peer);
    tkr_region_close(&owner);
}
END_TEST

static int check_fault(int fd, uint64_t bytes, uint64_t *ret_have)
{
    struct tkr_region_id id = {.ino = 77};
    struct tkr_region_fault fault = {0};

    ck_assert_int_eq(tkr_region_check(fd, bytes, &id, &fault), -EPERM);
    ck_assert_uint_eq(id.ino, 77);
    *ret_have = fault.have;
    return fault.reason;
}

START_TEST(each_missing_seal_is_a_fault)
{
    static const unsigned seals[] = {F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW,
                                     0x10 /* FUTURE_WRITE */};
    uint64_t have;

    for (size_t skip = 0; skip < 4; skip++) {
        int fd = memfd_create("t", MFD_ALLOW_SEALING | MFD_CLOEXEC);
        unsigned others = 0;

        for (size_t i = 0; i < 4; i++)
            others |= i == skip ? 0 : seals[i];
        ck_assert_int_eq(ftruncate(fd, BYTES), 0);
        ck_assert_int_eq(fallocate(fd, 0, 0, BYTES), 0);
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, (int)others), 0);
        ck_assert_int_eq(check_fault(fd, BYTES, &have), TKR_REFUSED_SEALS);
        ck_assert_uint_eq(have & 0x17, others);
        close(fd);
    }
}
END_TEST

START_TEST(a_file_on_a_disk_or_in_dev_shm_is_a_fault)
{
    char name[] = "/tmp/tokenring-region-XXXXXX";
    int fd = mkstemp(name);
    uint64_t have;
    int reason;

    ck_assert_int_eq(ftruncate(fd, BYTES), 0);
    reason = check_fault(fd, BYTES, &have);
    /* A file that cannot carry seals; on a tmpfs /tmp it has F_SEAL_SEAL only. */
    ck_assert(reason == TKR_REFUSED_FD || reason == TKR_REFUSED_SEALS);
    close(fd);
    unlink(name);
}
END_TEST

START_TEST(memory_that_was_never_touched_is_a_hole)
{
    int fd = memfd_create("t", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    uint64_t have;

    ck_assert_int_eq(ftruncate(fd, BYTES), 0);
    ck_assert_int_eq((int)pwrite(fd, "x", 1, 0), 1);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, (int)TKR_SEALS_MUST), 0);
    ck_assert_int_eq(check_fault(fd, BYTES, &have), TKR_REFUSED_HOLES);
    ck_assert_uint_eq(have, TKR_PAGE);
    close(fd);
}
END_TEST

START_TEST(a_size_that_is_no_multiple_of_a_page_is_refused)
{
    struct tkr_region r;

    ck_assert_int_eq(tkr_region_create(&r, 0), -EINVAL);
    ck_assert_int_eq(tkr_region_create(&r, 100), -EINVAL);
    ck_assert_int_eq(tkr_region_create(&r, UINT64_MAX - 4095), -EINVAL);
}
END_TEST

/* Offsets worked out by hand: header page, control lines in page 1, 64 u32 words are 256 bytes
 * each, rings on a page. */
START_TEST(the_layout_of_both_regions_is_the_one_on_paper)
{
    struct tkr_grant grant = grant_small;
    struct tkr_r_header r;
    struct tkr_t_header t;

    grant.colour = 3;
    tkr_r_layout(&r, &grant);
    ck_assert_uint_eq(r.ctl_off, 0x1000 + 3 * 64);
    ck_assert_uint_eq(r.cancel_off, 0x2000 + 3 * 64);
    ck_assert_uint_eq(r.release_off, 0x2000 + 3 * 64 + 256);
    ck_assert_uint_eq(r.sq_off, 0x3000 + 3 * 64);
    ck_assert_uint_eq(r.sq_stride, 64 * 64 + 256);
    ck_assert_uint_eq(r.arena_off, 0x5000);
    ck_assert_uint_eq(r.region_len, 0x15000);
    tkr_t_layout(&t, &grant);
    ck_assert_uint_eq(t.ctl_off, 0x1000 + 3 * 64);
    ck_assert_uint_eq(t.models_off, 0x2000);
    ck_assert_uint_eq(t.cq_off, 0x4000 + 3 * 64);
    ck_assert_uint_eq(t.res_off, 0x4000 + 3 * 64 + 256 * 64);
    ck_assert_uint_eq(t.bulk_off, 0xd000); /* 0x80c0 + 64 * 256 = 0xc0c0 */
    ck_assert_uint_eq(t.region_len, 0x1d000);
}
END_TEST

START_TEST(every_layout_within_the_limits_passes_its_own_check)
{
    const char *field = "";
    uint32_t n = 0;

    for (uint32_t nsq = 1; nsq <= TKR_NSQ_MAX; nsq++)
        for (uint32_t sq = TKR_SQ_LOG2_MIN; sq <= TKR_SQ_LOG2_MAX; sq++)
            for (uint32_t cq = TKR_CQ_LOG2_MIN; cq <= TKR_CQ_LOG2_MAX; cq += 3)
                for (uint32_t inflight = 1; inflight <= TKR_INFLIGHT_MAX;
                     inflight = inflight * 5 + 2) {
                    struct tkr_grant grant = {.nsq = nsq,
                                              .sq_log2 = sq,
                                              .cq_log2 = cq,
                                              .max_inflight = inflight,
                                              .colour = (nsq * 7 + sq) % TKR_COLOURS,
                                              .arena_len = 64 * inflight,
                                              .bulk_len = 64 * sq};
                    struct tkr_r_header r;
                    struct tkr_t_header t;

                    if (tkr_grant_check(&grant) < 0)
                        continue;
                    tkr_r_layout(&r, &grant);
                    ck_assert_msg(tkr_r_check(&r, &grant, &field) == 0, "R: %s", field);
                    tkr_t_layout(&t, &grant);
                    ck_assert_msg(tkr_t_check(&t, &grant, &field) == 0, "T: %s", field);
                    n++;
                }
    ck_assert_uint_gt(n, 500);
}
END_TEST

START_TEST(a_grant_outside_the_limits_is_refused)
{
    struct tkr_grant g;

#define REFUSED(field, value) (g = grant_small, g.field = (value), tkr_grant_check(&g) == -EINVAL)
    ck_assert_int_eq(tkr_grant_check(&grant_small), 0);
    ck_assert(REFUSED(nsq, 0));
    ck_assert(REFUSED(nsq, 9));
    ck_assert(REFUSED(sq_log2, 3));
    ck_assert(REFUSED(sq_log2, 13));
    ck_assert(REFUSED(cq_log2, 4));
    ck_assert(REFUSED(cq_log2, 17));
    ck_assert(REFUSED(max_inflight, 0));
    ck_assert(REFUSED(max_inflight, 4097));
    ck_assert(REFUSED(max_inflight, 256)); /* no slot would be left for output */
    ck_assert(REFUSED(colour, 32));
    ck_assert(REFUSED(arena_len, 1ull << 32));
    ck_assert(REFUSED(arena_len, 65));
    ck_assert(REFUSED(bulk_len, 1ull << 32));
}
END_TEST

START_TEST(each_field_of_a_header_that_leaves_the_region_is_named)
{
    struct tkr_r_header good, r;
    struct tkr_t_header tgood, t;
    const char *field;

#define R_WRONG(member, value)                                                                     \
    do {                                                                                           \
        r = good;                                                                                  \
        r.member = (value);                                                                        \
        ck_assert_int_eq(tkr_r_check(&r, &grant_small, &field), -EINVAL);                          \
        ck_assert_str_eq(field, #member);                                                          \
    } while (0)
#define T_WRONG(member, value)                                                                     \
    do {                                                                                           \
        t = tgood;                                                                                 \
        t.member = (value);                                                                        \
        ck_assert_int_eq(tkr_t_check(&t, &grant_small, &field), -EINVAL);                          \
        ck_assert_str_eq(field, #member);                                                          \
    } while (0)
    tkr_r_layout(&good, &grant_small);
    R_WRONG(magic, 1);
    R_WRONG(major, 2);
    R_WRONG(header_len, 255);
    R_WRONG(region_len, good.region_len + 4096);
    R_WRONG(nsq, 2);
    R_WRONG(sq_log2, 7);
    R_WRONG(max_inflight, 65);
    R_WRONG(colour, 1);
    R_WRONG(ctl_off, 0);
    R_WRONG(cancel_off, 4); /* inside the header, and no line */
    R_WRONG(cancel_off, UINT32_MAX - 63);
    R_WRONG(release_off, (uint32_t)good.region_len - 64);
    R_WRONG(sq_stride, 64);
    R_WRONG(sq_stride, 4097);
    R_WRONG(sq_off, (uint32_t)good.region_len - 4096 + 64);
    R_WRONG(arena_len, 65536 - 64);
    R_WRONG(arena_off, UINT64_MAX - 63); /* off + len wraps over 2^64 */
    R_WRONG(arena_off, good.arena_off + 64);
    R_WRONG(arena_off, good.arena_off - 1);
    r = good;
    r.reserved[0] = 1;
    ck_assert_int_eq(tkr_r_check(&r, &grant_small, &field), -EINVAL);
    ck_assert_str_eq(field, "reserved");
    tkr_t_layout(&tgood, &grant_small);
    T_WRONG(magic, 1);
    T_WRONG(major, 0);
    T_WRONG(header_len, 0);
    T_WRONG(region_len, 4096);
    T_WRONG(cq_log2, 9);
    T_WRONG(ctl_off, (uint32_t)tgood.region_len - 64);
    T_WRONG(cq_off, UINT32_MAX - 63);
    T_WRONG(res_off, (uint32_t)tgood.region_len);
    T_WRONG(bulk_off, UINT64_MAX - 63);
    T_WRONG(bulk_len, 0);
    T_WRONG(models_off, 0);
    T_WRONG(n_models, 65);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("region");
    TCase *tc = tcase_create("region");
    SRunner *sr;

    tcase_add_test(tc, a_sealed_region_passes_its_peers_check_and_shows_the_owners_bytes);
    tcase_add_test(
        tc, after_the_seals_nobody_can_write_shrink_grow_or_punch_but_through_the_owners_mapping);
    tcase_add_test(tc, neither_mapping_is_inherited_by_a_child);
    tcase_add_test(tc, each_missing_seal_is_a_fault);
    tcase_add_test(tc, a_file_on_a_disk_or_in_dev_shm_is_a_fault);
    tcase_add_test(tc, memory_that_was_never_touched_is_a_hole);
    tcase_add_test(tc, a_size_that_is_no_multiple_of_a_page_is_refused);
    tcase_add_test(tc, the_layout_of_both_regions_is_the_one_on_paper);
    tcase_add_test(tc, every_layout_within_the_limits_passes_its_own_check);
    tcase_add_test(tc, a_grant_outside_the_limits_is_refused);
    tcase_add_test(tc, each_field_of_a_header_that_leaves_the_region_is_named);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_set_tap(sr, "-");
    srunner_run_all(sr, CK_SILENT);
    srunner_free(sr);
    return 0;
}
