/* Freeing bytes at a position: drop a copy that idles there and compute it again later, or read it earlier.
 *
 * Drop: the copy made at x idles at position p and is read next at y. Run its op again just before y, together
 * with the ops of all inputs that are gone by then (the closure); or earlier, just after the stretch over the
 * budget around p. If nothing reads the old copies, their compute goes: the drop was a postponement. An op of
 * the closure costs nothing either if its earlier compute goes, too, or if its later one does, because the
 * budget has room to hold its outputs until then.
 *
 * Advance: the only node that still reads the copy after p moves to before p, so that the copy ends there. */

/* Probability that a dropped copy comes back earlier than just before its next read. */
static const double EARLY = 0.2;
/* Probability of keeping a copy alive although it exceeds the budget. */
static const double REACH = 0.1;

/* Whether a closure of any size can still be inserted, all nodes removed, and both noted in the log. */
static bool has_room(State *s) {
    Int n = s->counts[OPS] + 1;
    return s->counts[FREE] > n && s->counts[LOGGED] + n + s->counts[NODES] < s->counts[LOG_ROOM];
}

/* Whether a node may go: an earlier one of its op is there, or the op's first run may be another. */
static bool may_go(State *s, Int node) { return !s->must[s->op[node]] || s->prev[node] >= 0; }

/* Whether no node reads the outputs of this one, and it may go. */
bool idle(State *s, Int node) {
    Int v = s->op[node];
    for (Int k = 0; k < s->makes_at[v + 1] - s->makes_at[v]; k++)
        if (*death_of(s, node, k) != node) return false;
    return may_go(s, node);
}

static bool contains(const Int *list, Int first, Int end, Int item) {
    for (Int i = first; i < end; i++)
        if (list[i] == item) return true;
    return false;
}

/* Remove a node, and all nodes that only it needed. */
void discard(State *s, Int node) {
    Int n = 1;
    s->stack[0] = node;
    while (n > 0) {
        Int x = s->stack[--n], v = s->op[x], here = s->pos[x], known = n;
        remove_node(s, x);
        for (Int i = s->reads_at[v]; i < s->reads_at[v + 1]; i++) {
            Int t = s->reads[i], source = latest(s, s->producer[t], here);
            bool unread = *death_of(s, source, s->place[t]) == source;
            if (unread && !contains(s->stack, known, n, source) && idle(s, source)) s->stack[n++] = source;
        }
    }
}

/* Remove the node of the same op before this one, if nothing reads it any more. */
static void discard_previous(State *s, Int node) {
    Int before = s->prev[node];
    if (before >= 0 && idle(s, before)) discard(s, before);
}

/* Move a node to just before node `y`, unless a node in between reads it. */
static void move_node(State *s, Int node, Int y) {
    Int logged = s->counts[LOGGED], moved = insert_node(s, s->op[node], y);
    if (s->pos[moved] > s->pos[node] && !idle(s, node)) {
        undo(s, logged);
        return;
    }
    remove_node(s, node);
    discard_previous(s, moved);
}

/* Whether a node may go, and every node that reads its outputs goes, too. */
static bool goes_too(State *s, Int x, Int here) {
    Int v = s->op[x];
    for (Int i = s->makes_at[v]; i < s->makes_at[v + 1]; i++) {
        Int reader = *death_of(s, x, i - s->makes_at[v]), u = s->op[reader];
        if (reader == x) continue;
        if (s->marks[u] != s->counts[MARK] || latest(s, u, here) != reader) return false;
        if (first_read(s, s->makes[i], s->pos[x]) != reader) return false;
    }
    return may_go(s, x);
}

/* The first node of an op after node `y`, if its outputs may as well be held from there on; else -1. */
static Int needless_after(State *s, Int v, Int y, Int budget) {
    Int here = s->pos[y], node = -1, x = s->tail[v];
    while (x >= 0 && s->pos[x] > here) {
        node = x;
        x = s->prev[x];
    }
    if (node < 0 || x < 0) return -1;
    Int there = s->pos[node];
    for (Int i = s->makes_at[v]; i < s->makes_at[v + 1]; i++) {
        Int k = i - s->makes_at[v], start = larger(here, s->pos[*death_of(s, x, k)] + 1);
        if (*death_of(s, node, k) == node || start >= there) continue;
        if (exceeds(s, start, preceding(s, there), budget - s->size[s->makes[i]])) return -1;
    }
    return node;
}

/* Add the op of node `x` to the closure and note whether `x` goes as well; return the cost that this adds. */
static double charge(State *s, Int x, Int y, Int budget, bool thrifty) {
    Int v = s->op[x];
    s->marks[v] = s->counts[MARK] - 1;
    if (thrifty && goes_too(s, x, s->pos[y])) {
        s->marks[v]++;
        return 0.0;
    }
    return thrifty && needless_after(s, v, y, budget) >= 0 ? 0.0 : s->cost[v];
}

/* Write the ops to run just before node `y` so that `v` can run there to `found`; return their number.
 *
 * The number is 0 if that costs more than `limit`. With `goes`, the previous node of `v` goes then; with
 * `thrifty`, ops whose previous node goes then, too, or whose next node may, cost nothing. */
static Int closure(State *s, Int v, Int y, Int budget, double limit, bool goes, bool thrifty, double *cost) {
    s->counts[MARK] += 2; /* the last mark: the previous node goes; the one before it: that stays */
    Int mark = s->counts[MARK] - 1, here = s->pos[y], n = 1;
    s->found[0] = v;
    s->marks[v] = mark + goes;
    *cost = goes ? 0.0 : s->cost[v];
    if (thrifty && needless_after(s, v, y, budget) >= 0) *cost -= s->cost[v];
    for (Int done = 0; done < n; done++) {
        Int u = s->found[done];
        for (Int i = s->reads_at[u]; i < s->reads_at[u + 1]; i++) {
            Int t = s->reads[i], w = s->producer[t];
            if (s->marks[w] >= mark || s->once[w] || s->size[t] == 0) continue;
            Int x = latest(s, w, here), death = s->pos[*death_of(s, x, s->place[t])];
            if (death >= here) continue;
            if (!exceeds(s, death + 1, preceding(s, here), budget - s->size[t])) continue;
            if (draw(s) < REACH) continue;
            s->found[n++] = w;
            double added = charge(s, x, y, budget, thrifty);
            *cost += added;
            if (added > 0.0 && *cost > limit) return 0;
        }
    }
    return n;
}

static int by_id(const void *a, const void *b) {
    Int x = *(const Int *)a, y = *(const Int *)b;
    return (x > y) - (x < y);
}

/* Run op `v` and its closure just before node `y`, and remove nodes that are needless then. */
static void drop(State *s, Int v, Int y, Int budget, bool thrifty) {
    double cost;
    Int n = closure(s, v, y, budget, INFINITY, false, false, &cost);
    qsort(s->found, (size_t)n, sizeof(Int), by_id);
    for (Int i = 0; i < n; i++) insert_node(s, s->found[i], y);
    for (Int i = 0; i < n; i++) {
        Int later = thrifty ? needless_after(s, s->found[i], y, budget) : -1;
        if (later >= 0) discard(s, later);
    }
    for (Int i = 0; i < n; i++) discard_previous(s, latest(s, s->found[i], s->pos[y]));
}

/* The node before which a copy of tensor `t` that idles at `p` comes back; -1 if it is read at `p`.
 *
 * It is the next read or, at times, the node just after the stretch up to `last`. */
static Int comes_back(State *s, Int t, Int p, Int last) {
    Int y = first_read(s, t, p - 1);
    if (y < 0 || s->pos[y] == p) return -1;
    return last < s->pos[y] && draw(s) < EARLY ? s->at[following(s, last)] : y;
}

/* Bytes saved at `p` if a later node moves to just before node `y`, at or before `p`; 0 if it can't.
 *
 * It can't move to before the first run of its op, if that has to stay the first. */
static Int relief(State *s, Int node, Int y, Int p) {
    Int v = s->op[node], bytes = -s->made[v];
    if (v == s->counts[OPS] || (s->must[v] && s->pos[s->head[v]] >= s->pos[y])) return 0;
    for (Int i = s->reads_at[v]; i < s->reads_at[v + 1]; i++) {
        Int t = s->reads[i], source = latest(s, s->producer[t], s->pos[y]);
        if (source < 0) return 0;
        if (*death_of(s, source, s->place[t]) == node && first_read(s, t, p - 1) == node) bytes += s->size[t];
    }
    return larger(bytes, 0);
}

/* The first and the last position of the stretch around `p` in which every node is over the budget. */
static void stretch(State *s, Int p, Int budget, Int *first, Int *last) {
    Int before = preceding(s, p), end = s->tail[s->counts[OPS]];
    *first = *last = p;
    while (before >= 0 && s->mem[before] + s->add[before >> SHIFT] > budget) {
        *first = before;
        before = preceding(s, before);
    }
    while (s->mem[*last] + s->add[*last >> SHIFT] > budget && s->at[*last] != end) *last = following(s, *last);
}

/* The node whose copy of tensor `t` idles at position `p`; -1, mostly after two looks, if there is none. */
static Int idling(State *s, Int t, Int p) {
    Int v = s->producer[t], k = s->place[t];
    if (s->pos[s->head[v]] >= p || s->pos[*death_of(s, s->tail[v], k)] <= p) return -1;
    Int node = latest(s, v, p);
    return node >= 0 && s->pos[*death_of(s, node, k)] > p ? node : -1;
}

/* Bytes saved at `p` if node x's copies come back just before node `y`, else 0; and whether `x` goes. */
static Int dropped(State *s, Int x, Int p, Int y, bool *goes) {
    Int v = s->op[x], freed = 0;
    bool unread = true;
    for (Int i = s->makes_at[v]; i < s->makes_at[v + 1]; i++) {
        Int t = s->makes[i], death = s->pos[*death_of(s, x, i - s->makes_at[v])];
        if (death <= s->pos[x]) continue;
        Int first = first_read(s, t, s->pos[x]);
        unread = unread && s->pos[first] >= s->pos[y];
        if (death > p) {
            if (s->pos[first] < p) first = first_read(s, t, p - 1);
            if (s->pos[first] >= s->pos[y]) freed += s->size[t];
        }
    }
    *goes = unread && may_go(s, x);
    return s->once[v] && !*goes ? 0 : freed;
}

/* The worth of a change: bytes times positions, with some noise. The least cost per worth wins. */
static double worth_of(State *s, Int freed, Int first, Int last) {
    return (double)freed * (double)(last - first + 1) / (0.7 + 0.6 * draw(s));
}

/* Free bytes at position `p`: of some random drops and advances, do the one with the least cost per byte.
 *
 * `excess` are the bytes over the budget there; all positions around `p` that exceed it count. `samples` ways
 * are compared. Its cost is `limit` at most; if that is finite, computes that become needless lower the cost.
 * Returns false if none was found. */
bool make_room(State *s, Int p, Int excess, Int budget, Int samples, double limit) {
    enum { NONE, DROP, ADVANCE } kind = NONE;
    Int what = 0, where = 0, seen = 0, lots = s->counts[LOTS], first, last;
    bool thrifty = limit < INFINITY;
    double least = INFINITY;
    stretch(s, p, budget, &first, &last);
    Int i = draw_below(s, lots), stride = 1 + draw_below(s, lots - 1);
    for (Int left = lots > 0 ? 24 + 16 * samples : 0; left > 0 && seen < samples; left--) {
        i += stride;
        if (i >= lots) i -= lots;
        Int t = s->lots[i], x = idling(s, t, p), y = x >= 0 ? comes_back(s, t, p, last) : -1;
        if (y < 0) continue;
        seen++;
        bool goes;
        Int freed = dropped(s, x, p, y, &goes), until = smaller(last, s->pos[y]);
        if (freed > 0) {
            double worth = worth_of(s, smaller(freed, excess), larger(first, s->pos[x]), until);
            double cost, most = fmin(limit, least * worth - s->totals[LITTLE]);
            Int n = closure(s, s->op[x], y, budget, most, goes, thrifty, &cost);
            double score = (cost + s->totals[LITTLE]) / worth;
            if (n > 0 && score < least) {
                kind = DROP;
                what = s->op[x];
                where = y;
                least = score;
            }
        }
        if (y == *death_of(s, x, s->place[t])) {
            Int goal = draw(s) < 0.5 || s->pos[x] >= first ? s->at[p] : s->at[first];
            freed = relief(s, y, goal, p);
            if (freed > 0) {
                double score = s->totals[LITTLE] / worth_of(s, smaller(freed, excess), s->pos[goal], until);
                if (score < least) {
                    kind = ADVANCE;
                    what = y;
                    where = goal;
                    least = score;
                }
            }
        }
    }
    if (kind == DROP)
        drop(s, what, where, budget, thrifty);
    else if (kind == ADVANCE)
        move_node(s, what, where);
    return kind != NONE;
}
