/* The words for where a rank is. */
#pragma once

#include "comm/peers.h"

enum { WHERE_MAX = 256, WHERE_RANKS = 1024 };

/* "waiting in all_reduce #2 on dp (4 elements, ddp.c:44)", or "computing, after" it. `state` is that of the rank's
 * process. Signal handlers may call it. */
void where_is(const Peer *peer, char state, char text[WHERE_MAX]);

/* All ranks of the table, of which `states` are the processes' states, in one line; those at the same place together.
 * Returns the line's length. */
int where_are_all(const char *states, char *line, size_t room);
