#include "comm/recorder.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"

/* Can a collective fail while the host is elsewhere? */
#ifdef HAVE_CUDA
enum { POLLS = 1 };
#else
enum { POLLS = 0 };
#endif
enum { MOURNING_SECONDS = 2, PATIENCE = 60 };

/* One line of the ring. Written by the main thread; the watchdog and the signal handler only read it. */
typedef struct {
    char group[16];
    long sequence;
    CommKind kind;
    size_t count;
    Place place;
    bool done;
    bool on_gpu; /* handed to NCCL: the host has gone on, and the GPU knows when it is done */
} Record;

static Record ring[RECORDS];
static atomic_int next;               /* the slot of the next record */
static atomic_int waited_for = -1;    /* slot */
static atomic_long last_sign_of_life; /* nanoseconds */
static atomic_int patient;
static atomic_int finalizing;
static atomic_int stopped;
static atomic_int gave_up; /* the watchdog has spoken */
static double timeout;

static long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

int recorder_begin(const Group *group, const Collective *what)
{
    int slot = next;
    next = (next + 1) % RECORDS;
    Record *r = &ring[slot];
    *r = (Record){.sequence = group->sequence, .kind = what->kind, .count = what->count, .place = what->place};
    memcpy(r->group, group->name, sizeof r->group);
    recorder_alive();
    return slot;
}

void recorder_end(int slot)
{
    ring[slot].done = true;
    recorder_alive();
}

void recorder_hand_to_gpu(int slot)
{
    ring[slot].on_gpu = true;
}

void recorder_waits_for(int slot)
{
    waited_for = slot;
    recorder_alive();
}

void recorder_alive(void)
{
    atomic_store_explicit(&last_sign_of_life, now(), memory_order_relaxed);
}

static const char *basename_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* One line: where this rank is. Written with write(2), so that a signal handler may call it; but it may not ask the GPU. */
static void say_where(const char *cause, bool ask_gpu)
{
    char line[256];
    int slot = waited_for;
    bool waits = slot >= 0;
    for (int i = 0; i < RECORDS && !waits && ask_gpu; i++) { /* the oldest that the GPU has not done */
        slot = (next + i) % RECORDS;
        waits = ring[slot].on_gpu && !device_passed(slot);
    }
    if (!waits) slot = (next + RECORDS - 1) % RECORDS; /* the last one begun */
    const Record *r = &ring[slot];
    const char *doing = waits        ? "waiting in"
                        : finalizing ? "in MPI_Finalize, after"
                        : r->done    ? "computing, after"
                                     : "computing, having started";
    int length;
    if (!r->place.file)
        length = snprintf(line, sizeof line, "rank %d: %s before its first collective\n", comm_world_rank(), cause);
    else
        length = snprintf(line, sizeof line, "rank %d: %s %s %s #%ld on %s (%zu elements, %s:%d)\n", comm_world_rank(),
                          cause, doing, comm_kind_name(r->kind), r->sequence, r->group, r->count,
                          basename_of(r->place.file), r->place.line);
    if (write(STDERR_FILENO, line, (size_t)length) < 0) return; /* nobody left to tell */
}

static void *watch(void *unused)
{
    (void)unused;
    for (;;) {
        usleep(100000);
        if (stopped) recorder_alive();
        double silent = (double)(now() - last_sign_of_life) * 1e-9;
        const char *failure = device_failure();
        double limit = patient ? PATIENCE * timeout : timeout;
        if ((timeout <= 0 || silent <= limit) && !failure) continue;
        gave_up = 1;
        char cause[128];
        if (failure)
            snprintf(cause, sizeof cause, "NCCL failed (%s):", failure);
        else
            snprintf(cause, sizeof cause, "no progress for %.0f s:", silent);
        say_where(cause, true);
        sleep(MOURNING_SECONDS); /* the watchdogs of the other ranks speak too; then one exit ends all */
        _exit(1);
    }
    return NULL;
}

static void on_signal(int number)
{
    say_where("ended by a signal:", false);
    _exit(128 + number);
}

static void on_bus_error(int number)
{
    static const char line[] = "SIGBUS: a file of data or weights was cut short while it was read, or memory ran out\n";
    (void)number;
    (void)!write(STDERR_FILENO, line, sizeof line - 1);
    _exit(1);
}

void watchdog_start(double timeout_seconds)
{
    recorder_alive();
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    signal(SIGBUS, on_bus_error);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of write, and is reported there */
    timeout = timeout_seconds;
    if (timeout <= 0 && !POLLS) return;
    pthread_t thread;
    if (pthread_create(&thread, NULL, watch, NULL) != 0) fatal("the watchdog thread could not be started");
    pthread_detach(thread);
}

void watchdog_be_patient(void)
{
    patient++;
}

void watchdog_resume(void)
{
    recorder_alive();
    patient--;
}

void watchdog_finalizing(void)
{
    watchdog_be_patient(); /* with ranks that still write */
    finalizing = 1;
    while (gave_up) pause();  /* the watchdog ends the job, with its status */
    signal(SIGTERM, SIG_IGN); /* mpirun sends it to those who end a moment after the first */
    signal(SIGINT, SIG_DFL);
}

void watchdog_stop(void)
{
    while (gave_up) pause();
    stopped = 1;
}
