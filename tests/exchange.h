/* Checks of all_to_all and send_receive that are the same for buffers of the CPU and of a GPU. */
#pragma once

#include <stdbool.h>

#include "comm/comm.h"
#include "kernels/kernels.h"

enum { EXCHANGE_TYPES = COMM_ACC + 1 };

/* [all ranks of the group] Each makes one call with buffers in the memory of `kernels`, whose bytes name the rank that
 * sends them, the rank that gets them, and their place. Returns whether `out` holds exactly the bytes that it must,
 * and `in` and what lies behind `out` are unchanged. */
bool exchange_all_to_all(const Kernels *kernels, Group *group, size_t count, CommType type);
bool exchange_send_receive(const Kernels *kernels, Group *group, size_t count, CommType type, int distance);

/* [all ranks of the group] Starts many of both, of different lengths, and of distances that mean the same peer where
 * the group is small, before it waits for the first. Waits in the reverse order, or in the order of the starts. */
bool exchange_in_flight(const Kernels *kernels, Group *group, bool reverse);
