/* --show: prints a picture of a run, without running it. */
#pragma once

#include "settings/config.h"
#include "observe/ledger.h"
#include "comm/mesh.h"
#include "model/params.h"

/* Prints what --show names. mesh: the grid of ranks and its groups. shards: which ranks hold which parameter under
 * `placement`, with layers split along tp and shards along fsdp. memory: bytes per rank, by formula. Returns false
 * for plan, which the scheme prints itself. */
bool show(const Config *config, Shape shape, Placement placement, const Expected *expected);
