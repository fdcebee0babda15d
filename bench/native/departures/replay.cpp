// Pods that come, wait and leave, and pods that come and stay, replayed as bench/placement/departures.py,
// replay.py and policies.py do it: the same choices and, operation by operation, the same floating point, so
// that both give the same figures to the last digit. What changes with the mix of requests comes from
// Python's own Scorer at each refresh. Host memory counts, memory on cards does not: the traces ask for none.
//
// Compiled without contraction of multiply and add: Python has none.

#include <queue>
#include <vector>

#include "abi.h"
#include "room.h"
#include "world.h"

namespace departures {
namespace {

struct Running {
    double ends;
    int64_t number;
    int32_t which, at;
    int32_t taken[kCards], cards;
    bool operator>(const Running &o) const { return std::tie(ends, number) > std::tie(o.ends, o.number); }
};

class Run {
   public:
    Run(Policy policy, const std::vector<Shape> &shapes, const NodeSpec *nodes, int count, const Arrival *coming,
        int pods, double patience, const Typical *typical)
        : shapes_(shapes), coming_(coming), pods_(pods), patience_(patience),
          world_(policy, shapes, nodes, count, typical) {
        for (int at = 0; at < count; at++) cards_.emplace_back(nodes[at].cards, kWhole);
        begin_ = last_ = coming[pods / 2].at;
    }

    Result all(const int32_t *refreshes, int refresh_count, Refresh refresh) {
        int next = 0;
        for (int i = 0; i < pods_; i++) {
            const Arrival &each = coming_[i];
            while (!leaving_.empty() && leaving_.top().ends <= each.at) depart();
            advance(each.at);
            if (next < refresh_count && refreshes[next] == i) {
                Terms terms{};
                if (!refresh(i, gone_, &terms) || !terms.spare_cpu) return {};
                world_.refreshed(terms);
                next++;
            }
            if (!start(i, each.at)) {
                waiting_.push_back(i);
                tell();
                demand_ += shapes_[each.shape].cores;
            }
        }
        return {area_, last_, begin_, gave_up_};
    }

   private:
    void advance(double now) {
        if (now > last_) {
            area_ += double(demand_) * (now - last_);
            last_ = now;
        }
    }

    void tell() {
        std::vector<std::pair<int, int>> pods;
        for (int i : waiting_) pods.emplace_back(i, coming_[i].shape);
        world_.wait(pods);
    }

    bool start(int which, double now) {
        const Arrival &each = coming_[which];
        const Shape &s = shapes_[each.shape];
        Room after;
        int at = world_.choose(each.shape, each.memory, &after);
        if (at < 0) return false;
        Running run{now + each.runs, number_++, which, at, {}, 0};
        auto &cards = cards_[at];
        int value = kWhole;  // of the card that a fraction takes: what is there before and not after
        if (s.cores && !s.cards) {
            int left[kWhole + 1] = {};
            for (int c : cards) left[c]++;
            for (int c = 0; c < after.cards; c++) left[after.at(c)]--;
            for (value = 0; left[value] <= 0;) value++;
        }
        for (int c = 0; c < int(cards.size()) && run.cards < (s.cores ? std::max(1, s.cards) : 0); c++)
            if (cards[c] == value) run.taken[run.cards++] = c;
        for (int i = 0; i < run.cards; i++) cards[run.taken[i]] -= std::min(s.cores, kWhole);
        world_.put(which, each.shape, each.memory, at, after);
        leaving_.push(run);
        return true;
    }

    void depart() {
        Running gone = leaving_.top();
        leaving_.pop();
        double now = gone.ends;
        advance(now);
        const Arrival &pod = coming_[gone.which];
        auto &cards = cards_[gone.at];
        for (int i = 0; i < gone.cards; i++) cards[gone.taken[i]] += std::min(shapes_[pod.shape].cores, kWhole);
        int free[kCards];
        std::copy(cards.begin(), cards.end(), free);
        gone_++;
        world_.leave(pod.shape, pod.memory, gone.at, pack(free, int(cards.size())));
        std::vector<int> still;
        for (int i : waiting_) {
            const Arrival &each = coming_[i];
            bool patient = now - each.at <= patience_;
            if (!patient || (world_.fits(each.shape, world_.room(gone.at)) && start(i, now))) {
                demand_ -= shapes_[each.shape].cores;
                gave_up_ += patient || each.at < begin_ ? 0 : shapes_[each.shape].cores;
            } else {
                still.push_back(i);
            }
        }
        if (still.size() < waiting_.size()) {
            waiting_ = still;
            tell();
        }
    }

    const std::vector<Shape> &shapes_;
    const Arrival *coming_;
    int pods_;
    double patience_;
    World world_;
    std::vector<std::vector<int>> cards_;
    std::vector<int> waiting_;
    std::priority_queue<Running, std::vector<Running>, std::greater<Running>> leaving_;
    int64_t number_ = 0, demand_ = 0, gave_up_ = 0;
    int32_t gone_ = 0;
    double begin_ = 0, last_ = 0, area_ = 0;
};

// Pods that come and stay: one that fits nowhere is dropped, and has arrived all the same.
bool arrive(World &world, const std::vector<Shape> &shapes, int nodes, const Arrival *coming, int pods,
            const int32_t *refreshes, int refresh_count, Refresh refresh, const Course &course) {
    int64_t held = 0;
    double pieces = 0;
    int next = 0;
    for (int at = 0; at < nodes; at++) pieces += world.fragments(world.room(at));
    for (int i = 0; i < pods; i++) {
        const Arrival &each = coming[i];
        if (next < refresh_count && refreshes[next] == i) {
            Terms terms{};
            if (!refresh(i, 0, &terms) || !terms.spare_cpu) return false;
            world.refreshed(terms);
            next++;
        }
        Room after;
        int at = world.choose(each.shape, each.memory, &after);
        if (at >= 0) {
            double old = world.fragments(world.room(at));
            pieces += world.fragments(after) - old;
            world.put(i, each.shape, each.memory, at, after);
            held += shapes[each.shape].cores;
        }
        course.node[i] = at;
        course.held[i] = held;
        course.fragments[i] = pieces;
    }
    return true;
}

}  // namespace
}  // namespace departures

extern "C" Result departures_run(int32_t policy, const Shape *shapes, int32_t shape_count, const NodeSpec *nodes,
                                 int32_t node_count, const Arrival *coming, int32_t pods, double patience,
                                 const int32_t *refreshes, int32_t refresh_count, Refresh refresh,
                                 const Typical *typical) {
    std::vector<Shape> kinds(shapes, shapes + shape_count);
    departures::Run run(departures::Policy(policy), kinds, nodes, node_count, coming, pods, patience, typical);
    return run.all(refreshes, refresh_count, refresh);
}

extern "C" int32_t arrivals_run(int32_t policy, const Shape *shapes, int32_t shape_count, const NodeSpec *nodes,
                                int32_t node_count, const Arrival *coming, int32_t pods, const int32_t *refreshes,
                                int32_t refresh_count, Refresh refresh, const Typical *typical, const Course *course) {
    std::vector<Shape> kinds(shapes, shapes + shape_count);
    departures::World world(departures::Policy(policy), kinds, nodes, node_count, typical);
    return departures::arrive(world, kinds, node_count, coming, pods, refreshes, refresh_count, refresh, *course);
}
