/* --show: a run drawn as text, without running it. */
#pragma once

#include "settings/config.h"
#include "observe/ledger.h"
#include "comm/mesh.h"
#include "model/params.h"

/* Draws what --show names: mesh (the grid of ranks and its groups), shards (who holds which parameter, under `placement`, with
 * layers split along tp and shards dealt along fsdp), memory (bytes per rank by formula). Returns false for `plan`, which the scheme draws itself. */
bool show(const Config *config, Shape shape, Placement placement, const Expected *expected);
