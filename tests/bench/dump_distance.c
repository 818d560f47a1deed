/* The distance between two --dump files of one model: |a - b| / |b|, over all parameters, of the gradients and of the final
 * weights.
 *
 *   dump_distance MODEL A B */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "model/safetensors.h"
#include "settings/presets.h"

static const Tensor *tensor_of(const Safetensors *file, const char *prefix, const View *v)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", prefix, v->name);
    const Tensor *t = safetensors_find(file, name);
    if (!t || t->count != params_whole_size(v)) fatal("%s: not there, or of another size", name);
    return t;
}

static void add(const Params *table, const char *prefix, Safetensors *const file[2], double *difference, double *length)
{
    for (int n = 0; n < table->views; n++) {
        const Tensor *a = tensor_of(file[0], prefix, &table->view[n]), *b = tensor_of(file[1], prefix, &table->view[n]);
        for (size_t i = 0; i < a->count; i++) {
            double x = tensor_at(a, i), y = tensor_at(b, i);
            *difference += (x - y) * (x - y);
            *length += y * y;
        }
    }
}

int main(int argc, char **argv)
{
    const Preset *preset = argc == 4 ? preset_find(argv[1]) : NULL;
    Safetensors *file[2];
    if (!preset) {
        fprintf(stderr, "dump_distance MODEL A B, MODEL one of %s\n", preset_names());
        return 2;
    }
    for (int f = 0; f < 2; f++) {
        const char *complaint = safetensors_open(&file[f], argv[2 + f]);
        if (complaint) {
            fprintf(stderr, "%s\n", complaint);
            return 2;
        }
    }
    Params dense = params_table(&preset->model), experts = {0};
    if (preset->model.moe.experts) experts = experts_table(&preset->model, 1, 0);
    static const char *const prefixes[] = {"grad", "final"};
    for (int p = 0; p < 2; p++) {
        double difference = 0, length = 0;
        add(&dense, prefixes[p], file, &difference, &length);
        add(&experts, prefixes[p], file, &difference, &length);
        printf("%s%.3e", p ? " " : "", sqrt(difference / length));
    }
    printf("\n");
    params_free(&dense);
    params_free(&experts);
    for (int f = 0; f < 2; f++) safetensors_close(file[f]);
    return 0;
}
