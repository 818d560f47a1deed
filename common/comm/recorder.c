#include "comm/recorder.h"

#include <stdio.h>
#include <string.h>

static Recorder first = {.waited_for = -1}; /* until it moves */
Recorder *_Atomic recorder = &first;

void recorder_move(Recorder *to)
{
    memcpy((void *)to, (const void *)recorder, sizeof *to); /* the main thread alone writes it, and is here */
    recorder = to;
}

void recorder_alive(void)
{
    Recorder *r = recorder;
    unsigned long signs = atomic_load_explicit(&r->signs, memory_order_relaxed); /* no other thread writes it */
    atomic_store_explicit(&r->signs, signs + 1, memory_order_relaxed);
}

static const char *basename_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int recorder_begin(const char *what, const char *group, long number, size_t count, const char *path, int line)
{
    Recorder *r = recorder;
    int slot = r->next;
    Record *record = &r->ring[slot];
    record->on_gpu = false;
    record->done = false;
    record->number = number;
    record->count = count;
    record->line = line;
    snprintf(record->what, sizeof record->what, "%s", what);
    snprintf(record->group, sizeof record->group, "%s", group);
    snprintf(record->file, sizeof record->file, "%s", basename_of(path));
    r->next = (slot + 1) % RECORDS;
    recorder_alive();
    return slot;
}

void recorder_end(int slot)
{
    recorder->ring[slot].done = true;
    recorder_alive();
}

void recorder_hand_to_gpu(int slot)
{
    recorder->ring[slot].on_gpu = true;
    recorder_alive();
}

void recorder_waits_for(int slot)
{
    recorder->waited_for = slot;
    recorder_alive();
}
