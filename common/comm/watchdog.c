#include "comm/watchdog.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/device_watch.h"
#include "comm/peers.h"
#include "comm/where.h"

enum { START_SECONDS = 5, PATIENCE = 10, KNOWN = 8 };
static const double TICK = 0.1, LONGEST_TICK = 0.5, LOOK_EVERY = 0.5, LAST_WORDS = 2, LEAVE_APART = 0.2; /* seconds */
static const double LEAVE_APART_MOST = 5;                                                                /* ranks */

/* What this rank's watchdog has seen of a rank. It counts the time that it was there itself: when the whole job was
 * suspended for an hour, nobody has been silent for an hour. */
typedef struct {
    unsigned long signs;
    int gpu_waits;
    double silent;  /* seconds without a sign of life */
    double look_in; /* seconds until the next look at its process */
    double stopped; /* seconds in state T */
    char state;     /* of its process, as peer_state says it; '?' while it shows signs of life */
} View;

static View *view;                 /* by index in the table of peers */
static const Peer *viewed;         /* the table that `view` is about */
static double timeout;             /* seconds */
static double watched;             /* seconds since the start */
static atomic_bool watching;       /* there is a thread */
static atomic_flag has_said_where; /* a rank says once where it was when the run ended */

/* --- ending the run --- */

static void say(const char *line, int length)
{
    if (write(STDERR_FILENO, line, (size_t)length) < 0) return; /* nobody reads it */
}

/* A line about a rank: what has happened to it, then where it is. A signal handler calls it too. */
static void say_where(const Peer *peer, const char *cause, char state)
{
    char where[WHERE_MAX], line[WHERE_MAX + 128];
    where_is(peer, state, where);
    say(line, snprintf(line, sizeof line, "rank %d: %s: %s\n", peer->rank, cause, where));
}

/* Names a rank that is stopped or gone, if no other rank has named one before. */
static void say_lost(int index, char state)
{
    const Peer *peer = peer_at(index);
    char cause[96];
    if (!peers_end(index)) return;
    if (state)
        snprintf(cause, sizeof cause, "stopped (process %d is in state %c)", peer->pid, state);
    else
        snprintf(cause, sizeof cause, "gone (process %d has ended)", peer->pid);
    say_where(peer, cause, state);
}

static void leave(int status)
{
    peers_set_phase(PEER_ENDED); /* or the others would find this rank gone */
    _exit(status);
}

/* The watchdogs of the other ranks see that the run ends, and say where their ranks are. Then the first rank's exit ends
 * all: mpirun ends the others. These wait a little longer, because mpirun may crash or hang if several exit at once. */
static void end_run(const char *cause)
{
    double behind = LEAVE_APART * fmin((double)(peer_mine() - peer_at(0)), LEAVE_APART_MOST);
    if (!atomic_flag_test_and_set(&has_said_where)) say_where(peer_mine(), cause, '?');
    usleep((useconds_t)(((timeout > 0 ? fmin(LAST_WORDS, 2 * timeout) : LAST_WORDS) + behind) * 1e6));
    leave(1);
}

/* --- looking at the ranks --- */

static bool waits(const Peer *peer, char state)
{
    bool held = state == 'T' || state == 't';
    return !held && (peer->phase != PEER_RUNNING || peer->recorder.waited_for >= 0 || peer->gpu_waits >= 0);
}

/* The oldest collective that this rank's GPU is in. */
static void look_at_gpu(void)
{
    Peer *mine = peer_mine();
    Recorder *r = &mine->recorder;
    int in = -1, next = r->next;
    for (int i = 0; i < RECORDS && in < 0; i++) {
        int slot = (next + i) % RECORDS;
        if (r->ring[slot].on_gpu && device_is_in(slot)) in = slot;
    }
    mine->gpu_waits = in;
}

static void look_at(const Peer *peer, View *v, double seconds)
{
    if (v->signs != peer->recorder.signs || v->gpu_waits != peer->gpu_waits) {
        *v = (View){.signs = peer->recorder.signs, .gpu_waits = peer->gpu_waits, .state = '?'};
        v->look_in = fmin(LOOK_EVERY, timeout / 2);
        return;
    }
    v->silent += seconds;
    v->look_in -= seconds;
    if (v->look_in <= 0) {
        v->state = peer_state(peer);
        v->look_in = LOOK_EVERY;
    }
    v->stopped = v->state == 'T' ? v->stopped + seconds : 0;
}

/* --- a rank waits for one that computes: a line, and no end --- */

/* Which ranks wait for long, and where: the same value for the same places. */
static uint64_t situation(void)
{
    uint64_t hash = 1;
    for (int i = 0; i < peers_count(); i++) {
        const Peer *peer = peer_at(i);
        int slot = peer->recorder.waited_for;
        if (peer->phase == PEER_ENDED || !waits(peer, view[i].state) || view[i].silent <= timeout) continue;
        hash = hash * 31 + (uint64_t)i;
        hash = hash * 31 + (uint64_t)(slot >= 0 ? peer->recorder.ring[slot].line : 0);
    }
    return hash;
}

/* A new situation is told at once, but for one line a timeout. One that was told is told again after ever longer
 * times. */
static bool is_worth_a_line(void)
{
    static uint64_t known[KNOWN];
    static int told;
    static double last, interval;
    uint64_t now = situation();
    bool is_new = true;
    for (int k = 0; k < KNOWN; k++) is_new = is_new && known[k] != now;
    if (told && watched < last + (is_new ? timeout : interval)) return false;
    if (is_new) known[told++ % KNOWN] = now;
    interval = is_new ? 2 * timeout : 2 * interval;
    last = watched;
    return true;
}

static void say_situation(double longest)
{
    char states[WHERE_RANKS], line[2048];
    if (!is_worth_a_line()) return;
    for (int i = 0; i < peers_count() && i < WHERE_RANKS; i++) states[i] = view[i].state;
    int length = snprintf(line, sizeof line, "some ranks have waited for %.0f s, the run goes on; ", longest);
    length += where_are_all(states, line + length, sizeof line - (size_t)length);
    say(line, length);
}

/* --- the judgement --- */

static void judge(double seconds)
{
    int first = -1;
    double shortest = INFINITY, longest = 0; /* silence of a rank that waits */
    bool some_compute = false, some_start = false, some_stopped = false;
    for (int i = 0; i < peers_count(); i++) {
        const Peer *peer = peer_at(i);
        View *v = &view[i];
        if (peer->phase == PEER_ENDED) continue;
        if (first < 0) first = i;
        look_at(peer, v, seconds);
        if (v->stopped > timeout || (v->state == 0 && peer->phase != PEER_ENDED)) say_lost(i, v->state);
        some_start = some_start || peer->phase == PEER_STARTING;
        some_stopped = some_stopped || v->state == 'T' || v->state == 0;
        if (waits(peer, v->state)) {
            shortest = fmin(shortest, v->silent);
            longest = fmax(longest, v->silent);
        } else
            some_compute = true;
    }
    if (some_stopped || longest <= timeout) return;
    double limit = some_start ? fmax(timeout, START_SECONDS) : peers_unseen() ? PATIENCE * timeout : timeout;
    if (!some_compute && shortest > limit)
        peers_end(-1);
    else if (first >= 0 && peer_at(first) == peer_mine())
        say_situation(longest);
}

/* Ends the run if this or another rank has found that it must end. */
static void obey(void)
{
    int because;
    char cause[128];
    if (!peers_ending(&because)) return;
    if (because >= 0 && peer_at(because) == peer_mine())
        atomic_flag_test_and_set(&has_said_where); /* another rank has said it, and mpirun has woken this one */
    const View *mine = view && viewed == peer_at(0) ? &view[peer_mine() - peer_at(0)] : NULL;
    if (mine && waits(peer_mine(), mine->state))
        snprintf(cause, sizeof cause, "no progress for %.0f s", mine->silent);
    else if (because >= 0)
        snprintf(cause, sizeof cause, "ended because of rank %d", peer_at(because)->rank);
    else
        snprintf(cause, sizeof cause, "ended with the other ranks");
    end_run(cause);
}

static void *watch(void *unused)
{
    (void)unused;
    double before = clock_seconds();
    for (;;) {
        usleep((useconds_t)(TICK * 1e6));
        if (peer_mine()->phase == PEER_ENDED) return NULL;
        double now = clock_seconds(), seconds = fmin(now - before, LONGEST_TICK);
        before = now;
        watched += seconds;
        if (viewed != peer_at(0)) { /* there is another table now */
            free(view);
            view = calloc((size_t)peers_count(), sizeof *view);
            viewed = peer_at(0);
            if (!view) fatal("out of memory");
        }
        const char *failure = device_failure();
        if (failure) {
            char cause[128];
            snprintf(cause, sizeof cause, "NCCL failed (%s)", failure);
            peers_end(-1);
            end_run(cause);
        }
        look_at_gpu();
        if (timeout > 0) judge(seconds);
        obey();
    }
}

/* --- signals --- */

static void on_signal(int number)
{
    int because;
    for (int i = 0; i < peers_count(); i++) /* mpirun ends the others when one has died */
        if (peer_at(i)->phase != PEER_ENDED && peer_state(peer_at(i)) == 0 && peer_at(i)->phase != PEER_ENDED)
            say_lost(i, 0);
    bool named = peers_ending(&because) && because >= 0 && peer_at(because) == peer_mine();
    if (!named && !atomic_flag_test_and_set(&has_said_where)) say_where(peer_mine(), "ended by a signal", '?');
    leave(128 + number);
}

static void on_bus_error(int number)
{
    static const char line[] = "SIGBUS: a file of data or weights was cut short while it was read, or memory ran out\n";
    (void)number;
    say(line, sizeof line - 1);
    leave(1);
}

void watchdog_start(double timeout_seconds)
{
    peers_begin();
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    signal(SIGBUS, on_bus_error);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of write, and is reported there */
    timeout = timeout_seconds;
    if (timeout <= 0 && !device_can_fail()) return;
    pthread_t thread;
    if (pthread_create(&thread, NULL, watch, NULL) != 0) fatal("the watchdog thread could not be started");
    pthread_detach(thread);
    watching = true;
}

/* Where the run ends badly, the watchdog ends this rank, with its status. */
static void wait_if_ending(void)
{
    int because;
    while (watching && peers_ending(&because)) pause();
}

void watchdog_finalizing(void)
{
    peers_set_phase(PEER_FINALIZING);
    wait_if_ending();
    signal(SIGTERM, SIG_IGN); /* mpirun sends it to those who end a moment after the first */
    signal(SIGINT, SIG_DFL);
}

void watchdog_stop(void)
{
    wait_if_ending();
    peers_set_phase(PEER_ENDED);
}
