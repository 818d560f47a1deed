#include <string.h>

#include "cpu.h"

void embedding_forward(real *y, const real *w, const int *token, int first, int vocab, int n, int width)
{
    for (int i = 0; i < n; i++, y += width) {
        int t = token[i] - first;
        if (t >= 0 && t < vocab)
            memcpy(y, w + (size_t)t * width, (size_t)width * sizeof *y);
        else
            memset(y, 0, (size_t)width * sizeof *y);
    }
}

/* Two rows may have the same token and so add to the same row of dw. Therefore each thread takes columns, not rows. */
void embedding_backward(acc *dw, const real *dy, const int *token, int first, int vocab, int n, int width)
{
    enum { COLUMNS = 64 };
#pragma omp parallel for
    for (int c0 = 0; c0 < width; c0 += COLUMNS) {
        int c1 = c0 + COLUMNS < width ? c0 + COLUMNS : width;
        for (int i = 0; i < n; i++) {
            int t = token[i] - first;
            for (int c = c0; c < c1 && t >= 0 && t < vocab; c++) dw[(size_t)t * width + c] += dy[(size_t)i * width + c];
        }
    }
}
