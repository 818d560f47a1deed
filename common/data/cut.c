#include "data/cut.h"

static int teams(Cut cut)
{
    return cut.ranks ? cut.ranks / (cut.sharers ? cut.sharers : 1) : 1;
}

/* One team alone has the whole sequence in order, so zigzag with one team is contiguous. */
static int is_zigzag(Cut cut)
{
    return cut.layout == LAYOUT_ZIGZAG && teams(cut) > 1;
}

int cut_multiple(Cut cut)
{
    int ranks = cut.ranks ? cut.ranks : 1, multiple = ranks;
    if (is_zigzag(cut))
        while (multiple % (2 * teams(cut))) multiple += ranks;
    return multiple;
}

int cut_chunks(Cut cut, int seq, int begin[2], int end[2])
{
    int n = teams(cut), team = cut.rank / (cut.sharers ? cut.sharers : 1);
    int chunks = is_zigzag(cut) ? 2 : 1, rows = seq / (chunks * n); /* of a chunk */
    begin[0] = team * rows;
    begin[1] = (2 * n - 1 - team) * rows;
    for (int c = 0; c < chunks; c++) end[c] = begin[c] + rows;
    return chunks;
}

int cut_place(Cut cut, int seq, int i)
{
    int begin[2], end[2], sharers = cut.sharers ? cut.sharers : 1;
    cut_chunks(cut, seq, begin, end);
    int j = cut.rank % sharers * (seq / teams(cut) / sharers) + i; /* the row's number among its team's rows */
    int rows = end[0] - begin[0];
    return j < rows ? begin[0] + j : begin[1] + j - rows;
}
