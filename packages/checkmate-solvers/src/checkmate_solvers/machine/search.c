/* The local search: one sequence of ops, brought within a budget and improved. library.py calls it.
 *
 * All files are compiled as one, so that functions may be inlined. Those that are not static can be called from
 * outside, by tests. */

#include "state.h"
/* In this order: each uses the ones before it. */
#include "sequence.h"
#include "drops.h"
#include "rounds.h"

/* Load a sequence, repair it, run rounds; each step is optional. See `search` in library.py. */
Int search(
    State *s, const Int *sequence, Int length, Int budget, Int steps, Int rounds, double cooling, Int samples
) {
    if (length > 0 || s->counts[BLOCKS] == 0) {
        load(s, sequence, length);
        keep_best(s);
    }
    if (steps > 0) {
        s->counts[LOGGED] = 0;
        if (!repair(s, budget, steps, samples)) return -1;
        s->counts[LOGGED] = 0;
        trim(s, budget);
        keep_best(s);
    }
    return run_rounds(s, budget, rounds, cooling, samples);
}
