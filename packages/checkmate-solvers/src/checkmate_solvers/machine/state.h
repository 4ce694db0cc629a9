/* The arrays of a search. arrays.py makes them, and says what each holds. */

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef int64_t Int;

/* The addresses of the arrays, in the order of `State` in arrays.py. */
typedef struct {
    const double *cost;
    const Int *workspace, *made;
    const bool *once, *must;
    const Int *reads_at, *reads, *makes_at, *makes, *users_at, *users, *reuses_at, *reuses;
    const Int *producer, *place, *size, *lots;
    Int *op, *prev, *pos, *death, *head, *tail, *runs, *free;
    Int *at, *mem, *add, *most, *filled;
    Int *log, *repeated, *rank, *marks, *found, *stack, *best;
    Int *counts;
    double *totals;
    Int *random;
} State;

/* Entries of `counts` and of `totals`. */
enum { BLOCKS, FREE, LOGGED, REPEATED, MARK, BEST_LENGTH, OPS, NODES, LOG_ROOM, LOTS, WIDTH };
enum { COST, BEST, LITTLE, TEMPERATURE };

enum { SHIFT = 6, BLOCK = 1 << SHIFT, INSIDE = BLOCK - 1, FILLED = BLOCK / 2 };

static const Int NOTHING = -((Int)1 << 62);

static inline Int smaller(Int a, Int b) { return a < b ? a : b; }
static inline Int larger(Int a, Int b) { return a > b ? a : b; }

/* A random number in (0, 1): Marsaglia's xorshift (Journal of Statistical Software 8, 2003), 64 bits. */
static double draw(State *s) {
    uint64_t x = (uint64_t)*s->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    *s->random = (Int)x;
    return ((double)(x >> 12) + 0.5) * 0x1p-52;
}

/* A random whole number from 0 to `size` - 1. */
static Int draw_below(State *s, Int size) { return (Int)(draw(s) * (double)size); }

/* The entry that names the last node to read the copy of output `k` made by a node. */
static inline Int *death_of(State *s, Int node, Int k) { return &s->death[node * s->counts[WIDTH] + k]; }
