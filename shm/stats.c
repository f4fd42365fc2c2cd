/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/stats.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static uint64_t clock_read_ns(clockid_t clock)
{
    struct timespec ts;

    clock_gettime(clock, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* The name in field 2 may hold spaces and brackets: fields count from its last ')'. */
int tkr_stats_process(uint32_t pid, uint64_t *ret_ticks, char *ret_process_state)
{
    char path[64], line[1024], *at;
    ssize_t n;
    int fd, field;

    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -ESRCH;
    n = read(fd, line, sizeof line - 1);
    close(fd);
    if (n <= 0)
        return -ESRCH;
    line[n] = '\0';
    at = strrchr(line, ')');
    if (!at || at[1] != ' ')
        return -ESRCH;
    at += 2;
    *ret_process_state = *at;
    for (field = 3; field < 22; field++) {
        at = strchr(at, ' ');
        if (!at)
            return -ESRCH;
        at++;
    }
    *ret_ticks = strtoull(at, NULL, 10);
    return 0;
}

/* 1: somebody who lives holds the daemon's lock. */
static int locked_by_another(int fd)
{
    if (flock(fd, LOCK_SH | LOCK_NB) < 0)
        return errno == EWOULDBLOCK;
    flock(fd, LOCK_UN);
    return 0;
}

static void header_fill(struct tkr_stats *page, const char *version)
{
    char process_state;

    page->magic = TKR_STATS_MAGIC;
    page->major = TKR_STATS_MAJOR;
    page->minor = TKR_STATS_MINOR;
    page->bytes = sizeof *page;
    page->pid = (uint32_t)getpid();
    if (tkr_stats_process(page->pid, &page->pid_start_ticks, &process_state) < 0)
        page->pid_start_ticks = 0;
    page->start_ns = clock_read_ns(CLOCK_MONOTONIC);
    page->start_unix_s = clock_read_ns(CLOCK_REALTIME) / 1000000000u;
    snprintf(page->version, sizeof page->version, "%s", version);
    page->heartbeat_ns = page->start_ns;
    page->state = TKR_STATS_STARTING;
}

int tkr_stats_create(struct tkr_stats_file *ret_file, const char *path, const char *version)
{
    char fresh[PATH_MAX];
    struct tkr_stats *page = MAP_FAILED;
    int fd, n, err;

    n = snprintf(fresh, sizeof fresh, "%s.new", path);
    if (n < 0 || (size_t)n >= sizeof fresh)
        return -ENAMETOOLONG;
    unlink(fresh); /* of a daemon that died in the middle of this */
    fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (fd < 0)
        return -errno;
    /* fchmod: the umask may have cut 0640. */
    if (fchmod(fd, 0640) < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0) {
        err = -errno;
        goto fail;
    }
    /* Takes the memory now: a full tmpfs is an error here and not a SIGBUS at some later store. */
    err = -posix_fallocate(fd, 0, TKR_PAGE);
    if (err < 0)
        goto fail;
    page = mmap(NULL, TKR_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        err = -errno;
        goto fail;
    }
    header_fill(page, version);
    if (rename(fresh, path) < 0) {
        err = -errno;
        goto fail;
    }
    *ret_file = (struct tkr_stats_file){.page = page, .fd = fd};
    return 0;

fail:
    if (page != MAP_FAILED)
        munmap(page, TKR_PAGE);
    unlink(fresh);
    close(fd);
    return err;
}

void tkr_stats_count_end(struct tkr_stats_file *file, enum tkr_status status)
{
    uint32_t number = (uint32_t)status & ~TKR_STATUS_RETRY;

    if (number < TKR_STATS_STATUSES) {
        uint64_t *count = &file->page->ended[number];

        tkr_stats_put(count, TKR_LOAD_RELAXED(count) + 1);
    }
}

void tkr_stats_set_model(struct tkr_stats_file *file, const char *name, const uint8_t *hash,
                         const char *cpu_variant)
{
    struct tkr_stats *page = file->page;

    snprintf(page->model, sizeof page->model, "%s", name);
    memcpy(page->model_hash, hash, sizeof page->model_hash);
    snprintf(page->cpu_variant, sizeof page->cpu_variant, "%s", cpu_variant);
}

void tkr_stats_set_state(struct tkr_stats_file *file, enum tkr_stats_state state)
{
    tkr_stats_put(&file->page->heartbeat_ns, clock_read_ns(CLOCK_MONOTONIC));
    /* Release pairs with the acquire in tkr_stats_read(): the text fields are written before READY. */
    TKR_STORE_RELEASE(&file->page->state, (uint64_t)state);
}

/* ---- the table of clients --------------------------------------------------------------------- */

#define CLIENT_WORDS (sizeof(struct tkr_stats_client) / sizeof(uint64_t))
#define STORED_WORD  (offsetof(struct tkr_stats_client, stored_ns) / sizeof(uint64_t))
#define CLIENT_TRIES 1000 /* a record is written in some 50 ns */

int tkr_stats_add_clients(struct tkr_stats_file *file, uint32_t slots)
{
    size_t bytes = (size_t)slots * sizeof(struct tkr_stats_client);
    void *table;
    int err;

    if (file->clients || !slots)
        return -EINVAL;
    err = -posix_fallocate(file->fd, TKR_PAGE, (off_t)bytes);
    if (err < 0)
        return err;
    table = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, TKR_PAGE);
    if (table == MAP_FAILED)
        return -errno;
    file->clients = table;
    file->client_slots = slots;
    tkr_stats_put(&file->page->clients_off, TKR_PAGE);
    /* Release pairs with the acquire in tkr_stats_read_clients(): where it lies is known. */
    TKR_STORE_RELEASE(&file->page->client_slots, (uint64_t)slots);
    return 0;
}

int tkr_stats_put_client(struct tkr_stats_file *file, uint32_t slot,
                         const struct tkr_stats_client *client, uint64_t now_ns)
{
    uint64_t words[CLIENT_WORDS] = {0}, *to;
    size_t i;

    if (slot >= file->client_slots)
        return 0;
    if (client)
        memcpy(words, client, sizeof words);
    to = (uint64_t *)(void *)&file->clients[slot];
    words[STORED_WORD] = TKR_LOAD_RELAXED(&to[STORED_WORD]); /* our own: nobody else may write */
    for (i = 1; i < CLIENT_WORDS; i++)
        if (TKR_LOAD_RELAXED(&to[i]) != words[i])
            break;
    if (i == CLIENT_WORDS)
        return 0;
    words[STORED_WORD] = now_ns;
    words[0] = TKR_LOAD_RELAXED(&to[0]);
    TKR_STORE_RELAXED(&to[0], words[0] + 1);
    /* Release pairs with the acquire fence in client_copy(): who sees a new word sees seq odd. */
    __atomic_thread_fence(__ATOMIC_RELEASE);
    for (i = 1; i < CLIENT_WORDS; i++)
        TKR_STORE_RELAXED(&to[i], words[i]);
    /* Release pairs with the acquire of seq in client_copy(): the record is whole. */
    TKR_STORE_RELEASE(&to[0], words[0] + 2);
    return 1;
}

void tkr_stats_close(struct tkr_stats_file *file)
{
    if (!file->page)
        return;
    if (file->clients)
        munmap(file->clients, (size_t)file->client_slots * sizeof *file->clients);
    file->clients = NULL;
    file->client_slots = 0;
    tkr_stats_put(&file->page->stopped_ns, clock_read_ns(CLOCK_MONOTONIC));
    tkr_stats_set_state(file, TKR_STATS_GONE);
    munmap(file->page, TKR_PAGE);
    close(file->fd);
    file->page = NULL;
    file->fd = -1;
}

/* Word by word, so that each figure is whole; state first, so that the text behind READY is too. */
static void page_copy(struct tkr_stats *ret_stats, const struct tkr_stats *page)
{
    const uint64_t *from = (const uint64_t *)(const void *)page;
    uint64_t words[sizeof *page / sizeof(uint64_t)];
    uint64_t state = TKR_LOAD_ACQUIRE(&page->state);
    uint64_t slots = TKR_LOAD_ACQUIRE(&page->client_slots); /* pairs with tkr_stats_add_clients() */
    size_t i;

    for (i = 0; i < sizeof words / sizeof words[0]; i++)
        words[i] = TKR_LOAD_RELAXED(&from[i]);
    memcpy(ret_stats, words, sizeof words);
    ret_stats->state = state;
    ret_stats->client_slots = slots;
    ret_stats->version[sizeof ret_stats->version - 1] = '\0';
    ret_stats->model[sizeof ret_stats->model - 1] = '\0';
    ret_stats->cpu_variant[sizeof ret_stats->cpu_variant - 1] = '\0';
}

/* Whole, or with an odd seq when its writer died in the middle (or is stopped there). */
static void client_copy(struct tkr_stats_client *ret_client, const struct tkr_stats_client *client)
{
    const uint64_t *from = (const uint64_t *)(const void *)client;
    uint64_t words[CLIENT_WORDS];

    for (int try = 0; try < CLIENT_TRIES; try++) {
        uint64_t seq = TKR_LOAD_ACQUIRE(&from[0]); /* pairs with the last store of the writer */

        for (size_t i = 1; i < CLIENT_WORDS; i++)
            words[i] = TKR_LOAD_RELAXED(&from[i]);
        __atomic_thread_fence(__ATOMIC_ACQUIRE); /* pairs with the writer's release fence */
        words[0] = TKR_LOAD_RELAXED(&from[0]);
        if (words[0] == seq && seq % 2 == 0)
            break;
        words[0] |= 1;
    }
    memcpy(ret_client, words, sizeof words);
    ret_client->library[sizeof ret_client->library - 1] = '\0';
}

static int clients_copy(int fd, uint64_t file_bytes, const struct tkr_stats *stats,
                        struct tkr_stats_client **ret_clients, uint32_t *ret_n)
{
    uint64_t off = stats->clients_off, slots = stats->client_slots;
    struct tkr_stats_client *clients;
    void *base;
    uint32_t n = 0;

    *ret_clients = NULL;
    *ret_n = 0;
    if (!slots)
        return 0;
    if (off % TKR_PAGE || off > file_bytes || slots > (file_bytes - off) / sizeof *clients ||
        slots > UINT32_MAX)
        return -EPROTO;
    base = mmap(NULL, (size_t)slots * sizeof *clients, PROT_READ, MAP_SHARED, fd, (off_t)off);
    if (base == MAP_FAILED)
        return -errno;
    clients = malloc((size_t)slots * sizeof *clients);
    if (clients) {
        for (uint64_t i = 0; i < slots; i++) {
            client_copy(&clients[n], (const struct tkr_stats_client *)base + i);
            n += clients[n].id != 0;
        }
    }
    munmap(base, (size_t)slots * sizeof *clients);
    if (!clients)
        return -ENOMEM;
    if (!n) {
        free(clients);
        return 0;
    }
    *ret_clients = clients;
    *ret_n = n;
    return 0;
}

/* ret_clients: may be NULL. */
static int file_read(int fd, struct tkr_stats *ret_stats, int *ret_alive,
                     struct tkr_stats_client **ret_clients, uint32_t *ret_n)
{
    struct tkr_stats copy;
    struct stat st;
    void *page;
    int alive, err = 0;

    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) || st.st_size < (off_t)TKR_PAGE)
        return -EPROTO;
    page = mmap(NULL, TKR_PAGE, PROT_READ, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return -errno;
    /* Asked first: a daemon that ends in order in between is then seen as GONE, never as dead. */
    alive = locked_by_another(fd);
    page_copy(&copy, page);
    munmap(page, TKR_PAGE);
    if (copy.magic != TKR_STATS_MAGIC || copy.major != TKR_STATS_MAJOR ||
        copy.bytes < TKR_STATS_BYTES_MINOR_0)
        return -EPROTO;
    if (copy.bytes < sizeof copy)
        memset((char *)&copy + copy.bytes, 0, sizeof copy - copy.bytes);
    if (ret_clients) {
        /* The table may have come between two reads of the page; its file has its size before. */
        err = fstat(fd, &st) < 0 ? -errno : 0;
        if (err == 0)
            err = clients_copy(fd, (uint64_t)st.st_size, &copy, ret_clients, ret_n);
    }
    if (err < 0)
        return err;
    *ret_stats = copy;
    *ret_alive = alive;
    return 0;
}

int tkr_stats_read_clients(const char *path, struct tkr_stats *ret_stats, int *ret_alive,
                           struct tkr_stats_client **ret_clients, uint32_t *ret_n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), err;

    if (fd < 0)
        return -errno;
    err = file_read(fd, ret_stats, ret_alive, ret_clients, ret_n);
    close(fd);
    return err;
}

int tkr_stats_read(const char *path, struct tkr_stats *ret_stats, int *ret_alive)
{
    return tkr_stats_read_clients(path, ret_stats, ret_alive, NULL, NULL);
}
