// The node that is closed to smaller requests: gpu_manager/domain/score/closing.py, without a clock.

#ifndef DEPARTURES_CLOSING_H
#define DEPARTURES_CLOSING_H

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace departures {

constexpr int kClosedFor = 3, kComesWithin = 8, kMostDoubled = 6, kWaitedQuarters = 5;

class Closing {
   public:
    int node() const { return node_; }
    int cards() const { return node_ < 0 ? 0 : cards_; }

    void left(int count) { departures_ += count; }

    void started(int pod, int cards, int node) {
        since_.erase(pod);
        in_vain_.erase(pod);
        if (node_ < 0 || (pod != pod_ && (node != node_ || cards < cards_))) return;
        node_ = -1, failures_ = 0, opens_ = departures_;
    }

    // `waiting`: pods and their shapes. `nearest`: a shape's node and the cores that must end there, -1 if none.
    template <class Nearest, class Cards>
    void look(const std::vector<std::pair<int, int>> &waiting, int running, Nearest nearest, Cards cards) {
        std::unordered_map<int, int64_t> since;
        int shape = -1;
        for (auto [pod, kind] : waiting) {
            auto known = since_.find(pod);
            since[pod] = known == since_.end() ? departures_ : known->second;
            if (node_ >= 0 && pod == pod_) shape = kind;
        }
        since_.swap(since);
        for (auto each = in_vain_.begin(); each != in_vain_.end();)
            each = since_.count(each->first) ? std::next(each) : in_vain_.erase(each);
        if (node_ >= 0) go_on(shape < 0 ? std::make_pair(-1, 0) : nearest(shape));
        if (node_ < 0 && departures_ >= opens_) begin(waiting, std::max(1, running), nearest, cards);
    }

   private:
    void go_on(std::pair<int, int> found) {
        if (found.first < 0 || departures_ >= ends_) return fail();
        node_ = found.first;
        if (found.second)
            room_ = -1;
        else if (room_ < 0)
            room_ = departures_;
        else if (departures_ - room_ >= comes_)
            fail();
    }

    void fail() {
        opens_ = departures_ + (std::max<int64_t>(1, departures_ - began_) << std::min(failures_, kMostDoubled));
        failures_++;
        in_vain_[pod_]++;
        node_ = -1;
    }

    template <class Nearest, class Cards>
    void begin(const std::vector<std::pair<int, int>> &waiting, int running, Nearest nearest, Cards cards) {
        std::vector<std::pair<int, size_t>> able;
        for (size_t i = 0; i < waiting.size(); i++) {
            if (4 * (departures_ - since_[waiting[i].first]) < int64_t(kWaitedQuarters) * running) continue;
            auto known = in_vain_.find(waiting[i].first);
            able.emplace_back(known == in_vain_.end() ? 0 : known->second, i);
        }
        std::sort(able.begin(), able.end());
        for (auto [vain, i] : able) {
            auto found = nearest(waiting[i].second);
            if (found.first < 0) continue;
            node_ = found.first, pod_ = waiting[i].first, cards_ = cards(waiting[i].second);
            began_ = departures_, ends_ = departures_ + int64_t(kClosedFor) * running, room_ = -1;
            comes_ = std::max(1, running / kComesWithin);
            return;
        }
    }

    int node_ = -1, pod_ = -1, cards_ = 0, comes_ = 0, failures_ = 0;
    int64_t departures_ = 0, began_ = 0, ends_ = 0, room_ = -1, opens_ = 0;
    std::unordered_map<int, int64_t> since_;  // departures when it began to wait
    std::unordered_map<int, int> in_vain_;    // nodes that were closed for it
};

}  // namespace departures

#endif
