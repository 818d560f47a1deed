/* What to do when something is wrong.
 *
 * Two kinds of fault, two ways out:
 *
 *   A rank cannot go on (a library call failed, an invariant broke): fatal() prints one line and aborts every rank.
 *
 *   The user asked for something impossible: each rank finds its own complaint (or none), then all call agree().
 *   If any rank complains, rank 0 prints one line and every rank exits with status 2. Nobody is left waiting, because
 *   nobody exits before all have agreed to.
 */
#pragma once

/* Prints "rank R on HOST: ..." to stderr and ends the whole job with status 1. Does not return. */
void fatal(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Formats a complaint into a static buffer, overwritten by the next call. Use: return complain("--steps %d: ...", n); */
const char *complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* [all ranks] Returns if `complaint` is NULL on every rank. Otherwise rank 0 prints the complaint of the lowest rank
 * that has one, and all ranks finish MPI and exit with status 2. */
void agree(const char *complaint);

/* Fails with the condition's text, file and line when `condition` does not hold. Stays in every build. */
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) fatal("%s:%d: check failed: %s", __FILE__, __LINE__, #condition);                            \
    } while (0)
