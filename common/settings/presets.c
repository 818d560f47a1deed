#include "settings/presets.h"

#include <string.h>

/* nano is for tests. It is small, but has 8 heads, 4 kv heads and a head_dim that is not width / heads, and 1, 2, 3,
 * 4, 6, 8, 12 or 16 ranks divide its batch. demo is for two CPU cores. 124m has matrices of the sizes of GPT-2 small,
 * 350m of GPT-2 medium; 1b has the shapes of Llama 3.2 1B. Those with -moe, or moe-, have experts: nano-moe and
 * demo-moe two of eight, which together are as wide as the feed-forward of nano and demo. */
/* clang-format off */
static const Preset presets[] = {
    {
        .model = {.name = "nano", .layers = 2, .width = 16, .heads = 8, .kv_heads = 4, .head_dim = 4, .ff = 24,
                  .vocab = 256, .tied = true, .qk_norm = false, .theta = 1e4, .eps = 1e-5, .init_std = 0.1},
        .seq = 48, .batch = 48, .lr = 1e-2,
    },
    {
        .model = {.name = "demo", .layers = 4, .width = 128, .heads = 4, .kv_heads = 2, .head_dim = 32, .ff = 512,
                  .vocab = 256, .tied = true, .qk_norm = false, .theta = 1e4, .eps = 1e-5, .init_std = 0.05},
        .seq = 128, .batch = 24, .lr = 3e-3,
    },
    {
        .model = {.name = "124m", .layers = 12, .width = 768, .heads = 12, .kv_heads = 12, .head_dim = 64, .ff = 2048,
                  .vocab = 50304, .tied = true, .qk_norm = false, .theta = 1e4, .eps = 1e-5, .init_std = 0.02},
        .seq = 1024, .batch = 64, .lr = 6e-4,
    },
    {
        .model = {.name = "350m", .layers = 24, .width = 1024, .heads = 16, .kv_heads = 16, .head_dim = 64, .ff = 2816,
                  .vocab = 50304, .tied = true, .qk_norm = false, .theta = 1e4, .eps = 1e-5, .init_std = 0.02},
        .seq = 1024, .batch = 32, .lr = 3e-4,
    },
    {
        .model = {.name = "1b", .layers = 16, .width = 2048, .heads = 32, .kv_heads = 8, .head_dim = 64, .ff = 8192,
                  .vocab = 128256, .tied = true, .qk_norm = false, .theta = 5e5, .eps = 1e-5, .init_std = 0.02},
        .seq = 4096, .batch = 4, .lr = 3e-4,
    },
    {
        .model = {.name = "nano-moe", .layers = 2, .width = 16, .heads = 8, .kv_heads = 4, .head_dim = 4, .ff = 0,
                  .vocab = 256, .tied = true, .qk_norm = false, .theta = 1e4, .eps = 1e-5, .init_std = 0.1,
                  .moe = {.experts = 8, .top_k = 2, .ff = 12, .renormalize = true, .aux_coef = 0.01, .bias_rate = 0.001}},
        .seq = 48, .batch = 48, .lr = 1e-2,
    },
    {
        .model = {.name = "demo-moe", .layers = 4, .width = 128, .heads = 4, .kv_heads = 2, .head_dim = 32, .ff = 0,
                  .vocab = 256, .tied = true, .qk_norm = false, .theta = 1e4, .eps = 1e-5, .init_std = 0.05,
                  .moe = {.experts = 8, .top_k = 2, .ff = 256, .renormalize = true, .aux_coef = 0.01, .bias_rate = 0.001}},
        .seq = 128, .batch = 24, .lr = 3e-3,
    },
    { /* a billion parameters, of which about 300 million are active for a row */
        .model = {.name = "moe-1b", .layers = 16, .width = 1024, .heads = 16, .kv_heads = 8, .head_dim = 64, .ff = 0,
                  .vocab = 50304, .tied = true, .qk_norm = true, .theta = 5e5, .eps = 1e-5, .init_std = 0.02,
                  .moe = {.experts = 32, .top_k = 6, .ff = 640, .renormalize = true, .aux_coef = 0.01, .bias_rate = 0.001}},
        .seq = 2048, .batch = 16, .lr = 3e-4,
    },
    { /* the shape at which CPU trainers are compared in docs/results.md */
        .model = {.name = "bench", .layers = 4, .width = 256, .heads = 4, .kv_heads = 4, .head_dim = 64, .ff = 680,
                  .vocab = 4096, .tied = true, .qk_norm = false, .theta = 1e4, .eps = 1e-5, .init_std = 0.02},
        .seq = 64, .batch = 4, .lr = 1e-3,
    },
};
/* clang-format on */
enum { PRESETS = sizeof presets / sizeof presets[0] };

const Preset *preset_find(const char *name)
{
    for (int p = 0; p < PRESETS; p++)
        if (strcmp(presets[p].model.name, name) == 0) return &presets[p];
    return NULL;
}

const char *preset_names(void)
{
    static char text[128];
    size_t n = 0;
    for (int p = 0; p < PRESETS; p++) {
        const char *parts[] = {p ? ", " : "", presets[p].model.name};
        for (int i = 0; i < 2; i++)
            for (const char *c = parts[i]; *c && n + 1 < sizeof text; c++) text[n++] = *c;
    }
    text[n] = '\0';
    return text;
}
