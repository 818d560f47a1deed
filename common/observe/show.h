/* --show: prints a picture of a run, without running it. */
#pragma once

#include "settings/config.h"
#include "observe/ledger.h"
#include "comm/mesh.h"
#include "model/model.h"

/* Prints what --show names. mesh: the grid of ranks and its groups. shards: which ranks hold which parameter under
 * part.placement, with layers split along tp and shards along fsdp, and which experts. memory: bytes per rank, by formula. Returns false
 * for plan, which the scheme prints itself. */
bool show(const Config *config, Shape shape, ModelPart part, const Expected *expected);
