#include "training.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

#if defined(PRECISION_FP64)
const double TRAINING_LATER = 1e-9;
#else
const double TRAINING_LATER = INFINITY;
#endif

Training random_training(Random *r)
{
    const double ignored[] = {0, 0.3, 0.7, 1};
    int K = random_int(r, 1, 3);
    Training t = {
        .model = {.layers = random_int(r, 1, 4),
                  .width = random_int(r, 7, 24),
                  .heads = K * random_int(r, 1, 3),
                  .kv_heads = K,
                  .head_dim = 2 * random_int(r, 2, 5),
                  .ff = random_int(r, 1, 40),
                  .vocab = random_int(r, 31, 60),
                  .tied = random_int(r, 0, 1),
                  .qk_norm = random_int(r, 0, 1),
                  .theta = 1e4,
                  .eps = 1e-5,
                  .init_std = 0.2},
        .seq = random_int(r, 1, 17),
        .sequences = random_int(r, 1, 3),
        .accumulate = random_int(r, 1, 3),
        .ignore = ignored[random_int(r, 0, 3)],
        .clip = random_int(r, 0, 1) ? 0.1 : 1e3,
        .optimizer = random_int(r, 0, 3) ? OPTIMIZER_ADAMW : OPTIMIZER_SGD,
        .seed = random_int(r, 0, 1000),
    };
    t.model.max_seq = t.seq;
    snprintf(t.model.name, sizeof t.model.name, "random");
    return t;
}

char *describe_training(const Training *t, char *text, size_t size)
{
    snprintf(text, size,
             "layers %d width %d heads %d/%d x %d ff %d vocab %d tied %d qk_norm %d seq %d sequences %d accumulate %d "
             "ignore %g clip %g window %d prefix %d pack %d seed %ld",
             t->model.layers, t->model.width, t->model.heads, t->model.kv_heads, t->model.head_dim, t->model.ff,
             t->model.vocab, t->model.tied, t->model.qk_norm, t->seq, t->sequences, t->accumulate, t->ignore, t->clip,
             t->window, t->prefix, t->pack, t->seed);
    return text;
}

DataOrder training_order(const Training *t, int replicas)
{
    return (DataOrder){.seed = (uint64_t)t->seed,
                       .batch = replicas * t->sequences * t->accumulate,
                       .seq = t->seq,
                       .ignore = t->ignore,
                       .window = t->window,
                       .prefix = t->prefix,
                       .pack = t->pack,
                       .document = 7};
}

OptimizerConfig training_recipe(const Training *t)
{
    return (OptimizerConfig){.kind = t->optimizer,
                             .lr = 1e-2,
                             .steps = 10,
                             .weight_decay = 0.1,
                             .clip = t->clip,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8};
}

Counters training_counters(Group *const *groups, int count)
{
    Counters now = {0};
    for (int g = 0; g < count; g++) {
        if (!groups[g]) continue;
        CHECK(now.groups < COUNTERS_MAX);
        now.group[now.groups] = groups[g];
        for (int k = 0; k < COMM_KINDS; k++) now.count[now.groups][k] = group_count(groups[g], (CommKind)k);
        now.groups++;
    }
    return now;
}

void training_ledger(char *text, size_t size, const Expected *e, const Counters *before, const size_t *held)
{
    Counters now = training_counters(before->group, before->groups);
    long calls = 0, expected_calls = 0;
    *text = '\0';
    for (int r = 0; r < e->comm_rows; r++) { /* all of them, because all ranks must ask for the mean payload */
        const ExpectedComm *want = &e->comm[r];
        int g = 0;
        while (g < now.groups && strcmp(group_name(now.group[g]), want->group) != 0) g++;
        CHECK(g < now.groups);
        long made = now.count[g][want->kind].calls - before->count[g][want->kind].calls;
        double sent = now.count[g][want->kind].payload - before->count[g][want->kind].payload;
        sent = ledger_payload(now.group[g], want->kind, sent);
        expected_calls += (long)want->calls;
        /* A byte changes a payload by its factor, which is at least 1/2. A smaller difference comes from rounding. */
        if (*text) continue;
        if ((double)made != want->calls || !(fabs(sent - want->payload) < 0.25))
            snprintf(text, size, "%s %s: %ld calls %.0f bytes, formula %.0f calls %.0f bytes", want->group,
                     comm_kind_name(want->kind), made, sent, want->calls, want->payload);
    }
    for (int g = 0; g < now.groups; g++)
        for (int k = 0; k < COMM_KINDS; k++) calls += now.count[g][k].calls - before->count[g][k].calls;
    if (!*text && calls != expected_calls) snprintf(text, size, "%ld calls in all, formula %ld", calls, expected_calls);
    for (int m = 0; m < MEMORY_TWIN && !*text; m++) {
        size_t holds = memory_held((MemoryCategory)m) - held[m];
        if (holds != e->memory[m])
            snprintf(text, size, "%s: %zu bytes, formula %zu", memory_category_name((MemoryCategory)m), holds,
                     e->memory[m]);
    }
}

const char *training_tokens(void)
{
    static const char *path;
    if (!path) path = testing_token_file(31, 3000);
    return path;
}
