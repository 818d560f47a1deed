#include "observe/findings.h"

#include <math.h>
#include <stdio.h>

#include "base/precision.h"
#include "observe/verify.h"

#if defined(PRECISION_FP64)
static const double BOUND_FIRST = 1e-12, BOUND_LATER = 1e-9, FLOOR = 1e-3;
static const bool JUDGE_LATER = true;
#elif defined(PRECISION_FP32)
static const double BOUND_FIRST = 1e-5, BOUND_LATER = 1e-5, FLOOR = 5e-2;
static const bool JUDGE_LATER = false; /* printed as drift */
#else
static const double BOUND_FIRST = 1e-2, BOUND_LATER = 1e-2, FLOOR = 5e-2;
static const bool JUDGE_LATER = false;
#endif

/* Sums over more rows than this round more, as the root of their number. */
static const double ROWS_AT_BOUND = 8192, MICRO_STEPS_AT_BOUND = 64;

/* So many choices of experts may differ because of rounding. */
#if defined(PRECISION_FP64)
static const double FLIPS = 0;
#elif defined(PRECISION_FP32)
static const double FLIPS = 1e-3;
#else
static const double FLIPS = 1e-2;
#endif

Findings findings_create(double rows, int micro_steps)
{
    return (Findings){.bound_first = BOUND_FIRST * fmax(1, sqrt(rows / ROWS_AT_BOUND)) *
                                     fmax(1, sqrt((double)micro_steps / MICRO_STEPS_AT_BOUND))};
}

void findings_note_choices(Findings *f, int64_t miscounted, int64_t flips, int64_t all)
{
    f->miscounted += miscounted;
    f->flips += flips;
    f->choices += all;
}

static bool too_many_flips(const Findings *f)
{
    return (double)f->flips > (FLIPS > 0 ? 1 + FLIPS * (double)f->choices : 0);
}

void verify_compare(const acc *a, const acc *b, size_t n, double *difference, double *largest)
{
    double d = 0, l = 0;
    for (size_t i = 0; i < n; i++) {
        double x = fabs((double)a[i] - (double)b[i]), y = fabs((double)b[i]);
        if (!(x <= d)) d = isnan(x) ? INFINITY : x;
        if (y > l) l = y;
    }
    *difference = d;
    *largest = l;
}

double verify_error(double difference, double largest, double largest_of_all)
{
    double scale = fmax(largest, FLOOR * largest_of_all), error = difference / scale;
    if (difference == 0) return 0;
    return isnan(error) ? INFINITY : error; /* both are infinite; MPI's maximum may lose a NaN */
}

/* Step 1 is judged before any update. Does this build judge what comes later? */
static bool is_judged(Kind kind, long step)
{
    return JUDGE_LATER || (step == 0 && kind != WEIGHT);
}

void findings_note(Findings *all, Kind kind, double error, const char *what, long step)
{
    bool judged = is_judged(kind, step);
    double bound = !judged ? INFINITY : step == 0 && kind != WEIGHT ? all->bound_first : BOUND_LATER;
    Finding *f = judged ? &all->judged[kind] : &all->drift[kind];
    bool failed = !(error <= bound) || !isfinite(error);
    if (f->failed && !failed) return; /* even if this error is larger: its bound is wider */
    if (failed == f->failed && error <= f->error) return;
    f->failed = failed;
    f->error = error;
    snprintf(f->where, sizeof f->where, "%s at step %ld", what, step + 1);
}

bool findings_print(const Findings *f, long done, long steps, bool prints)
{
    bool failed = f->unequal[0] != '\0' || done < steps || f->miscounted || too_many_flips(f);
    for (int k = 0; k < KINDS; k++) failed = failed || f->judged[k].failed || f->drift[k].failed;
    if (!prints) return failed;

    if (done < steps) printf("verify: %ld of %ld steps were compared\n", done, steps);
    if (f->unequal[0]) printf("verify: replicas of %s differ\n", f->unequal);
    for (int k = 0; k < KINDS; k++) {
        const Finding *both[] = {&f->judged[k], &f->drift[k]};
        for (int b = 0; b < 2; b++)
            if (both[b]->failed) printf("verify: %s is off by %.1e\n", both[b]->where, both[b]->error);
    }
    if (f->miscounted)
        printf("verify: %lld of %lld choices of experts were counted for others\n", (long long)f->miscounted,
               (long long)f->choices);
    if (f->flips)
        printf("verify: a single device would have made %lld of %lld choices of experts differently%s\n",
               (long long)f->flips, (long long)f->choices,
               too_many_flips(f) ? "" : ": near ties, which rounding decides");
    if (!JUDGE_LATER)
        printf("verify: drift after %ld steps, not judged: loss %.1e  norm %.1e  grad %.1e  weights %.1e\n", done,
               f->drift[LOSS].error, f->drift[NORM].error, f->drift[GRADIENT].error, f->drift[WEIGHT].error);
    printf("verify: %s  loss %.1e  norm %.1e  grad %.1e", failed ? "FAIL" : "PASS", f->judged[LOSS].error,
           f->judged[NORM].error, f->judged[GRADIENT].error);
    if (JUDGE_LATER)
        printf("  weights %.1e  (bounds %.0e, %.0e)\n", f->judged[WEIGHT].error, f->bound_first, BOUND_LATER);
    else
        printf("  weights %s on all ranks  (bound %.0e)\n", f->unequal[0] ? "not equal" : "equal", f->bound_first);
    return failed;
}
