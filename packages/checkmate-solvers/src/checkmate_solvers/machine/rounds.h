/* Ruin and recreate, with annealing: one round removes computes, frees bytes again, and is kept or undone.
 *
 * The sequence is within the budget before and after each round. A round may raise the cost by -T * log(u),
 * with u uniform in (0, 1) and T the temperature: Metropolis's rule, its threshold drawn first, so that
 * hopeless rounds stop early. */

static const double TINY = 1e-9;
/* Temperature of a whole repair: relative to the bytes over the budget, plus a share of the budget. */
static const double WARMTH = 0.3, LEAST_WARMTH = 0.02;
/* In a share KICKING of whole repairs, each step is kept with probability KICKS, whatever it does. */
static const double KICKS = 0.05, KICKING = 0.3;
/* The same probability in a round, whose repair is cold. */
static const double COLD_KICKS = 0.1;
/* Probability that a round compares more ways to free bytes, and how many times as many. */
static const double CAREFUL = 0.15;
static const Int MANY = 8;

/* The position with the most memory; at times that of another block which is over the budget. */
static Int fullest(State *s, Int budget) {
    Int block = fullest_block(s);
    if (draw(s) < 0.3) {
        Int other = draw_below(s, s->counts[BLOCKS]);
        if (s->most[other] > budget) block = other;
    }
    Int corner = block << SHIFT, most = corner;
    for (Int p = corner + 1; p < corner + s->filled[block]; p++)
        if (s->mem[p] > s->mem[most]) most = p;
    return most;
}

/* Bytes over the budget, summed over all nodes. */
static double overflow(State *s, Int budget) {
    double area = 0.0;
    for (Int block = 0; block < s->counts[BLOCKS]; block++) {
        if (s->most[block] <= budget) continue;
        Int corner = block << SHIFT, added = s->add[block] - budget;
        for (Int p = corner; p < corner + s->filled[block]; p++) area += (double)larger(s->mem[p] + added, 0);
    }
    return area;
}

/* Free bytes at the fullest nodes, one after the other; false if that fails or costs too much. */
static bool free_bytes(
    State *s, Int budget, double most_cost, Int steps, Int samples, double warmth, double kicks
) {
    double area = overflow(s, budget);
    for (; steps > 0; steps--) {
        Int p = fullest(s, budget), excess = s->mem[p] + s->add[p >> SHIFT] - budget;
        if (excess <= 0) return true;
        double limit = most_cost - s->totals[COST];
        if (limit < 0.0 || !has_room(s)) return false;
        Int logged = s->counts[LOGGED];
        if (!make_room(s, p, excess, budget, samples, limit)) return false;
        double left = overflow(s, budget);
        double heat = warmth * (WARMTH * area + LEAST_WARMTH * (double)budget);
        if (left < area - heat * log(draw(s)) || draw(s) < kicks)
            area = left;
        else
            undo(s, logged);
    }
    return peak(s) <= budget;
}

/* Free bytes until all is within the budget, whatever that costs; false if that takes more steps.
 *
 * The bytes over the budget, summed over all nodes, are treated as an energy: by Metropolis's rule, a step
 * may add to them. Near the least budget, nearly every way down leads over such steps. */
static bool repair(State *s, Int budget, Int steps, Int samples) {
    double kicks = draw(s) < KICKING ? s->totals[TEMPERATURE] * KICKS : 0.0;
    return free_bytes(s, budget, INFINITY, steps, samples, s->totals[TEMPERATURE], kicks);
}

/* A random node that is not the first of its op; there must be one. */
static Int again(State *s) {
    Int v = s->repeated[draw_below(s, s->counts[REPEATED])], node = s->tail[v];
    for (Int back = draw_below(s, s->runs[v] - 1); back > 0; back--) node = s->prev[node];
    return node;
}

/* Remove a node that is not the first of its op, if the rest then still is within the budget. */
static bool try_without(State *s, Int node, Int budget) {
    Int logged = s->counts[LOGGED];
    discard(s, node);
    if (peak(s) <= budget) return true;
    undo(s, logged);
    return false;
}

/* Remove repeated computes, in random order, until the budget allows no further removal. */
static void trim(State *s, Int budget) {
    bool going = true;
    while (going && s->counts[REPEATED] > 0 && has_room(s)) {
        going = false;
        Int start = draw_below(s, s->counts[REPEATED]), many = s->counts[REPEATED];
        for (Int i = 0; i < many && s->counts[REPEATED] > 0 && has_room(s); i++) {
            Int node = s->tail[s->repeated[(start + i) % s->counts[REPEATED]]];
            while (node >= 0 && s->prev[node] >= 0) {
                if (try_without(s, node, budget)) {
                    going = true;
                    break;
                }
                node = s->prev[node];
            }
        }
    }
}

/* Remove a random repeated compute, of which there must be one, and others just before it. */
static void ruin_together(State *s, Int many) {
    Int node = again(s), successor = s->at[following(s, s->pos[node])];
    discard(s, node);
    for (Int misses = 0; many > 1 && misses < 3;) {
        Int p = preceding(s, s->pos[successor]);
        if (p < 0) break;
        node = s->at[p];
        if (s->prev[node] >= 0 && s->op[node] != s->counts[OPS]) {
            discard(s, node);
            many--;
        } else {
            successor = node;
            misses++;
        }
    }
}

/* Remove all computes except the first of the most expensive of three random repeated ops. */
static void ruin_op(State *s) {
    Int v = -1;
    for (int i = 0; i < 3; i++) {
        Int w = s->repeated[draw_below(s, s->counts[REPEATED])];
        if (v < 0 || s->cost[w] > s->cost[v]) v = w;
    }
    while (s->runs[v] > 1) discard(s, s->tail[v]);
}

/* Free bytes at a random position that is nearly full: this may make a drop elsewhere needless. */
static void crowd(State *s, Int budget, double most_cost, Int samples) {
    Int block = draw_below(s, s->counts[BLOCKS]);
    if (s->filled[block] == 0) return;
    Int p = (block << SHIFT) + draw_below(s, s->filled[block]), held = s->mem[p] + s->add[block];
    if ((double)held > 0.8 * (double)budget)
        make_room(s, p, held, budget, samples, most_cost - s->totals[COST]);
}

/* Positions of the last node that a node reads, and of the first that reads it; -1 if there is none. */
static void span(State *s, Int node, Int *low, Int *high) {
    Int v = s->op[node];
    *low = *high = -1;
    for (Int i = s->reads_at[v]; i < s->reads_at[v + 1]; i++)
        *low = larger(*low, s->pos[latest(s, s->producer[s->reads[i]], s->pos[node])]);
    for (Int i = s->makes_at[v]; i < s->makes_at[v + 1]; i++) {
        if (*death_of(s, node, i - s->makes_at[v]) == node) continue;
        Int reader = s->pos[first_read(s, s->makes[i], s->pos[node])];
        *high = *high < 0 ? reader : smaller(*high, reader);
    }
}

/* Move a random compute to another place between its inputs and its readers, mostly next to one. */
static void shift(State *s) {
    Int node, low, high;
    if (s->counts[REPEATED] > 0 && draw(s) < 0.5) {
        node = again(s);
    } else {
        Int block = draw_below(s, s->counts[BLOCKS]);
        if (s->filled[block] == 0) return;
        node = s->at[(block << SHIFT) + draw_below(s, s->filled[block])];
    }
    Int v = s->op[node];
    if (v == s->counts[OPS] || (s->must[v] && s->prev[node] < 0)) return;
    span(s, node, &low, &high);
    if (s->must[v]) low = larger(low, s->pos[s->head[v]]);
    if (high < 0) return;
    Int place = draw(s) < 0.4 ? low : low + draw_below(s, high - low);
    Int successor = draw(s) < 0.3 ? s->at[high] : s->at[following(s, place)];
    if (successor != node) move_node(s, node, successor);
}

/* Begin a round: make the change that the random number `kind` selects. */
static void change(State *s, double kind, Int budget, double most_cost, Int samples) {
    if (kind < 0.2) {
        shift(s);
    } else if (kind < 0.38 || s->counts[REPEATED] == 0) {
        crowd(s, budget, most_cost, samples);
    } else if (kind < 0.68) {
        double few = draw(s);
        ruin_together(s, 1 + (Int)(8.0 * (few * few)));
    } else if (kind < 0.83) {
        ruin_op(s);
    } else {
        double few = draw(s);
        for (Int left = 1 + (Int)(4.0 * (few * few)); left > 0 && s->counts[REPEATED] > 0; left--)
            discard(s, again(s));
    }
}

/* Run rounds; return how many found a new best. */
static Int run_rounds(State *s, Int budget, Int rounds, double cooling, Int samples) {
    Int better = 0;
    for (; rounds > 0; rounds--) {
        s->counts[LOGGED] = 0;
        s->totals[TEMPERATURE] *= cooling;
        double start = s->totals[COST], most_cost = start - s->totals[TEMPERATURE] * log(draw(s));
        double kind = draw(s);
        change(s, kind, budget, most_cost, samples);
        if (s->counts[LOGGED] == 0) continue;
        Int many = draw(s) < CAREFUL ? MANY * samples : 1 + draw_below(s, samples);
        bool fine = free_bytes(s, budget, most_cost, 64, many, 0.0, COLD_KICKS);
        for (int left = kind >= 0.38 ? 4 : 12; fine && left > 0; left--)
            if (s->counts[REPEATED] > 0 && has_room(s)) try_without(s, again(s), budget);
        if (!fine || s->totals[COST] > most_cost) {
            undo(s, 0);
            s->totals[COST] = start;
        } else if (s->totals[COST] < s->totals[BEST] - TINY * start) {
            trim(s, budget);
            keep_best(s);
            better++;
        }
    }
    return better;
}
