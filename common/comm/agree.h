/* How a run that cannot be is refused: by all ranks together, so that none is left waiting in a collective. */
#pragma once

/* [all ranks] Returns if `complaint` is NULL on every rank. Otherwise rank 0 prints the complaint of the lowest rank
 * that has one, and all ranks finish MPI and exit with status 2. */
void agree(const char *complaint);
