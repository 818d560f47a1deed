#include "observe/metrics.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/memory.h"
#include "settings/outputs.h"

/* --- the log's first line --- */

/* Bytes of the UTF-8 character that begins at `c`; 0 if the bytes there are not UTF-8. */
static int utf8_length(const unsigned char *c)
{
    int length = *c < 0x80                 ? 1
                 : *c >= 0xc2 && *c < 0xe0 ? 2
                 : (*c & 0xf0) == 0xe0     ? 3
                 : *c >= 0xf0 && *c < 0xf5 ? 4
                                           : 0;
    for (int i = 1; i < length; i++)
        if ((c[i] & 0xc0) != 0x80) return 0;
    bool overlong = (*c == 0xe0 && c[1] < 0xa0) || (*c == 0xf0 && c[1] < 0x90);
    bool outside = (*c == 0xed && c[1] >= 0xa0) || (*c == 0xf4 && c[1] >= 0x90);
    return length > 2 && (overlong || outside) ? 0 : length;
}

/* Adds a text, with ? in place of bytes that are not UTF-8: a path may have any bytes, but JSON must be UTF-8. */
static void add_text(cJSON *object, const char *name, const char *text)
{
    char *clean = strdup(text);
    if (!clean) fatal("out of memory");
    for (char *c = clean; *c;) {
        int length = utf8_length((const unsigned char *)c);
        if (length == 0) *c = '?';
        c += length ? length : 1;
    }
    cJSON_AddStringToObject(object, name, clean);
    free(clean);
}

static void add_options(cJSON *object, const OptionTable *table)
{
    for (int r = 0; r < table->count; r++) {
        const Option *o = &table->rows[r];
        char *text = options_value(table, r);
        if (o->type == OPTION_TEXT || o->type == OPTION_CHOICE)
            add_text(object, o->name, text);
        else
            cJSON_AddNumberToObject(object, o->name, strtod(text, NULL));
        free(text);
    }
}

static cJSON *configuration(const Config *c, const OptionTable *tables, int count, const Mesh *mesh)
{
    const ModelConfig *m = &c->architecture;
    cJSON *object = cJSON_CreateObject();
    for (int t = count - 1; t >= 0; t--) add_options(object, &tables[t]);
    cJSON *model = cJSON_AddObjectToObject(object, "architecture");
    cJSON_AddNumberToObject(model, "layers", m->layers);
    cJSON_AddNumberToObject(model, "width", m->width);
    cJSON_AddNumberToObject(model, "heads", m->heads);
    cJSON_AddNumberToObject(model, "kv_heads", m->kv_heads);
    cJSON_AddNumberToObject(model, "head_dim", m->head_dim);
    cJSON_AddNumberToObject(model, "ff", m->ff);
    if (m->moe.experts) {
        cJSON *moe = cJSON_AddObjectToObject(model, "moe");
        cJSON_AddNumberToObject(moe, "experts", m->moe.experts);
        cJSON_AddNumberToObject(moe, "top_k", m->moe.top_k);
        cJSON_AddNumberToObject(moe, "ff", m->moe.ff);
        cJSON_AddBoolToObject(moe, "sigmoid", m->moe.router == ROUTER_SIGMOID);
        cJSON_AddBoolToObject(moe, "renormalize", m->moe.renormalize);
        cJSON_AddNumberToObject(moe, "aux_coef", m->moe.aux_coef);
        cJSON_AddNumberToObject(moe, "bias_rate", m->moe.bias_rate);
    }
    cJSON_AddNumberToObject(model, "vocab", m->vocab);
    cJSON_AddBoolToObject(model, "tied", m->tied);
    cJSON_AddBoolToObject(model, "qk_norm", m->qk_norm);
    cJSON_AddNumberToObject(model, "theta", m->theta);
    cJSON_AddNumberToObject(model, "eps", m->eps);
    cJSON_AddNumberToObject(model, "init_std", m->init_std);
    cJSON *axes = cJSON_AddObjectToObject(object, "mesh");
    for (int a = 0; a < AXES; a++) cJSON_AddNumberToObject(axes, axis_name((Axis)a), mesh->shape.size[a]);
    cJSON_AddNumberToObject(object, "ranks", group_size(mesh->world));
    cJSON_AddStringToObject(object, "precision", PRECISION_NAME);
    cJSON_AddStringToObject(object, "backend", c->kernels.backend);
    return object;
}

static void write_line(const Metrics *m, cJSON *object)
{
    char *text = cJSON_PrintUnformatted(object);
    if (!text) fatal("out of memory for --log %s", m->config->log);
    size_t length = strlen(text);
    text[length] = '\n'; /* in place of the zero, so that a line is written whole */
    output_write(m->log, "log", m->config->log, text, length + 1);
    free(text);
    cJSON_Delete(object);
}

const char *metrics_open(Metrics *m, const Config *config, const OptionTable *tables, int count, const Mesh *mesh)
{
    *m = (Metrics){.config = config,
                   .prints = group_rank(mesh->world) == 0,
                   .ranks = group_size(mesh->world),
                   .tokens = (double)(config->batch * config->seq)};
    if (!m->prints || !*config->log) return NULL;
    m->log = fopen(config->log, "w");
    if (!m->log) return complain("--log %s: %s", config->log, strerror(errno));
    write_line(m, configuration(config, tables, count, mesh));
    return NULL;
}

/* --- the line per step --- */

void metrics_start(Metrics *m)
{
    m->last_time = clock_seconds();
    m->last_sent = comm_sent();
}

/* 41234.5 -> "41.2k" */
static const char *human(double x, char *text, size_t size)
{
    static const char *const suffix[] = {"", "k", "M", "G"};
    int s = 0;
    while (s < 3 && x >= 1000) {
        x /= 1000;
        s++;
    }
    snprintf(text, size, s ? "%.1f%s" : "%.0f%s", x, suffix[s]);
    return text;
}

static const char *mebibytes(double bytes, char *text, size_t size)
{
    double m = bytes / 1048576;
    snprintf(text, size, m >= 10 ? "%.0f MiB" : m >= 0.1 || m == 0 ? "%.1f MiB" : "%.3f MiB", m);
    return text;
}

static void print_line(const Metrics *m, long step, double loss, double aux, double norm, double lr, double work,
                       double time, double sent)
{
    char speed[32], memory[32], traffic[32], rate[32], auxiliary[32] = "";
    double flops = work / time / m->ranks; /* per second and rank */
    double peak = m->config->peak > 0 ? m->config->peak : m->config->kernels.peak;
    if (peak > 0)
        snprintf(rate, sizeof rate, "mfu %.1f%%", 100 * flops / (peak * 1e12));
    else
        snprintf(rate, sizeof rate, "%.1f GFLOP/s", flops * m->ranks * 1e-9);
    if (m->config->architecture.moe.experts) snprintf(auxiliary, sizeof auxiliary, "  aux %.5f", aux);
    printf("step %ld/%ld  loss %.5f%s  norm %.2f  lr %.1e  %s tok/s  %s  mem %s  sent %s\n", step + 1, m->config->steps,
           loss, auxiliary, norm, lr, human(m->tokens / time, speed, sizeof speed), rate,
           mebibytes((double)memory_total(), memory, sizeof memory), mebibytes(sent, traffic, sizeof traffic));
}

void metrics_step(Metrics *m, long step, double loss, double aux, double norm, double lr, int64_t area)
{
    double now = clock_seconds(), time = now - m->last_time, sent = comm_sent() - m->last_sent;
    double work = model_flops(&m->config->architecture, (int64_t)m->tokens, area);
    m->last_time = now;
    m->last_sent = comm_sent();
    if (m->prints) print_line(m, step, loss, aux, norm, lr, work, time, sent);
    if (m->log) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddNumberToObject(object, "step", (double)step + 1);
        cJSON_AddNumberToObject(object, "loss", loss);
        if (m->config->architecture.moe.experts) cJSON_AddNumberToObject(object, "aux", aux);
        cJSON_AddNumberToObject(object, "norm", norm);
        cJSON_AddNumberToObject(object, "lr", lr);
        cJSON_AddNumberToObject(object, "seconds", time);
        cJSON_AddNumberToObject(object, "tokens_per_second", m->tokens / time);
        cJSON_AddNumberToObject(object, "flops_per_second", work / time);
        cJSON_AddNumberToObject(object, "memory_bytes", (double)memory_total());
        cJSON_AddNumberToObject(object, "sent_bytes", sent);
        write_line(m, object);
    }
}

void metrics_close(Metrics *m)
{
    if (m->log) output_close(m->log, "log", m->config->log);
    m->log = NULL;
}
