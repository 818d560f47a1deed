#include "comm/where.h"

#include <stdio.h>
#include <string.h>

void where_is(const Peer *peer, char state, char text[WHERE_MAX])
{
    const Recorder *r = &peer->recorder;
    int slot = r->waited_for >= 0 ? r->waited_for : peer->gpu_waits;
    bool waits = slot >= 0, finalizes = peer->phase == PEER_FINALIZING;
    if (!waits) slot = (r->next + RECORDS - 1) % RECORDS; /* the last one begun */
    const Record *record = &r->ring[slot];
    const char *held = state == 't' ? ", held by a debugger" : "";
    const char *doing = waits          ? "waiting in"
                        : finalizes    ? "in MPI_Finalize, after"
                        : record->done ? "computing, after"
                                       : "computing, having started";
    if (!*record->what)
        snprintf(text, WHERE_MAX, "%s%s",
                 finalizes                      ? "in MPI_Finalize"
                 : peer->phase == PEER_STARTING ? "before its first collective"
                                                : "computing, before its first collective",
                 held);
    else
        snprintf(text, WHERE_MAX, "%s %s #%ld on %s (%zu elements, %s:%d)%s", doing, record->what, record->number,
                 record->group, record->count, record->file, record->line, held);
}

/* Adds to a line of at most `room` bytes; what does not fit is cut off. Returns the new length. */
static int add(char *line, size_t room, int length, const char *text)
{
    int more = snprintf(line + length, room - (size_t)length, "%s", text);
    return length + more < (int)room ? length + more : (int)room - 1;
}

int where_are_all(const char *states, char *line, size_t room)
{
    static char where[WHERE_RANKS][WHERE_MAX]; /* the watchdog's thread alone is here */
    static bool told[WHERE_RANKS];
    int ranks = peers_count() < WHERE_RANKS ? peers_count() : WHERE_RANKS, length = 0, last = (int)room - 1;
    char number[48];
    for (int i = 0; i < ranks; i++) {
        told[i] = peer_at(i)->phase == PEER_ENDED;
        where_is(peer_at(i), states[i], where[i]);
    }
    for (int i = 0; i < ranks; i++) {
        if (told[i]) continue;
        int together = 0;
        for (int k = i; k < ranks; k++) together += !told[k] && strcmp(where[k], where[i]) == 0;
        length = add(line, (size_t)last, length, length ? "; rank" : "rank");
        if (together > 1) length = add(line, (size_t)last, length, "s");
        for (int k = i, n = 0; k < ranks; k++)
            if (!told[k] && (k == i || strcmp(where[k], where[i]) == 0)) {
                snprintf(number, sizeof number, "%s%d", n++ ? ", " : " ", peer_at(k)->rank);
                length = add(line, (size_t)last, length, number);
                told[k] = true;
            }
        length = add(line, (size_t)last, length, ": ");
        length = add(line, (size_t)last, length, where[i]);
    }
    if (peers_unseen()) {
        snprintf(number, sizeof number, "; %d other ranks: not seen from here", peers_unseen());
        length = add(line, (size_t)last, length, number);
    }
    line[length++] = '\n';
    return length;
}
