#define _GNU_SOURCE /* memfd_create */
#include "comm/peers.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

typedef struct {
    uint64_t key;
    int count;
    atomic_int ending; /* 0: no; 1: the watchdogs end the run; 2 + i: because of the i-th rank of the table */
    Peer peer[];
} Table;

/* The table of one, until there is a shared one. */
static union {
    Table table;
    char room[sizeof(Table) + sizeof(Peer)];
} alone = {.table = {.count = 1}};

static Table *opened; /* shared; not yet in use */
static Peer *mine_in_opened;
static int created = -1;
static Table *_Atomic table = &alone.table;
static Peer *_Atomic mine = alone.table.peer;
static atomic_int unseen;

static size_t table_bytes(int ranks)
{
    return sizeof(Table) + (size_t)ranks * sizeof(Peer);
}

/* Reads /proc/PID/stat: the state, and when the process started. Called by a signal handler too. */
static char read_state(int pid, int64_t *born)
{
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) return 0;
    text[length] = '\0';
    const char *field = strrchr(text, ')'); /* the second field is the program's name, in parentheses */
    if (!field || !field[1]) return '?';
    char state = field[2];
    for (int n = 2; n < 22 && field; n++) field = strchr(field + 1, ' ');
    *born = field ? atoll(field) : 0;
    return state == 'Z' || state == 'X' ? 0 : state;
}

static void fill_slot(Peer *peer)
{
    peer->rank = process_rank();
    peer->pid = (int)getpid();
    if (!read_state(peer->pid, &peer->born)) peer->born = 0;
    peer->phase = PEER_STARTING;
    peer->gpu_waits = -1;
    peer->recorder.waited_for = -1;
}

void peers_begin(void)
{
    if (mine->pid) return;
    fill_slot(mine);
    recorder_move(&mine->recorder);
}

PeersAddress peers_create(int ranks)
{
    PeersAddress address = {.pid = (int)getpid(), .fd = memfd_create("tiny-peers", MFD_CLOEXEC)};
    double now = clock_seconds();
    memcpy(&address.key, &now, sizeof address.key);
    Table header = {.key = address.key, .count = ranks};
    if (address.fd >= 0 && (ftruncate(address.fd, (off_t)table_bytes(ranks)) != 0 ||
                            pwrite(address.fd, &header, sizeof header, 0) != sizeof header)) {
        close(address.fd);
        address.fd = -1;
    }
    created = address.fd;
    return address;
}

bool peers_open(PeersAddress address, int ranks, int local_rank)
{
    char path[48];
    Table header;
    struct stat status;
    if (address.fd < 0) return false;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", address.pid, address.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    bool right = fstat(fd, &status) == 0 && (size_t)status.st_size == table_bytes(ranks) &&
                 pread(fd, &header, sizeof header, 0) == sizeof header && header.key == address.key;
    void *memory = right ? mmap(NULL, table_bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    if (memory == MAP_FAILED) return false;
    opened = memory;
    mine_in_opened = &opened->peer[local_rank];
    fill_slot(mine_in_opened);
    return true;
}

void peers_join(bool shared, int ranks)
{
    if (created >= 0) close(created); /* the mappings keep the file */
    created = -1;
    if (shared) {
        unseen = ranks - opened->count;
        recorder_move(&mine_in_opened->recorder);
        mine = mine_in_opened;
        table = opened;
    } else {
        unseen = ranks - 1;
        if (opened) munmap(opened, table_bytes(opened->count));
    }
    opened = NULL;
}

int peers_count(void)
{
    return table->count;
}

Peer *peer_at(int index)
{
    return &table->peer[index];
}

Peer *peer_mine(void)
{
    return mine;
}

int peers_unseen(void)
{
    return unseen;
}

void peers_set_phase(PeerPhase phase)
{
    mine->phase = (int)phase;
    recorder_alive();
}

bool peers_end(int because)
{
    int no = 0;
    return atomic_compare_exchange_strong(&table->ending, &no, 2 + because);
}

bool peers_ending(int *because)
{
    *because = table->ending - 2;
    return *because >= -1;
}

char peer_state(const Peer *peer)
{
    if (!peer->born) return '?';
    int64_t born = 0;
    char state = read_state(peer->pid, &born);
    return state && state != '?' && born != peer->born ? 0 : state;
}
