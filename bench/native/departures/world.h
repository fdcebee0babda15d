// The nodes of a cluster and what a policy says of them: bench/placement/replay.py's World, with ours, FGD and
// Best-Fit.

#ifndef DEPARTURES_WORLD_H
#define DEPARTURES_WORLD_H

#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "abi.h"
#include "closing.h"
#include "room.h"

namespace departures {

struct Offer {
    bool known = false, fits = false;
    double key = 0;
    Room after;
    std::vector<std::pair<int, int>> loss;
};

struct Slots {  // what a node counts for, under the mix of now
    std::vector<int> held;
};

class World {
   public:
    World(Policy policy, const std::vector<Shape> &shapes, const NodeSpec *nodes, int count, const Typical *typical)
        : policy_(policy), shapes_(shapes), typical_(typical) {
        for (int at = 0; at < count; at++) {
            int cards[kCards];
            std::fill(cards, cards + nodes[at].cards, kWhole);
            Room room{pack(cards, nodes[at].cards), nodes[at].cpu, int16_t(nodes[at].model), int16_t(nodes[at].cards)};
            int number = intern(room);
            state_.push_back(number);
            memory_.push_back(nodes[at].memory);
            pods_.push_back(0);
            enliven(number).insert(at);
            free_ += room.cores();
            cpu_[number] = nodes[at].cpu;
        }
    }

    const Room &room(int at) const { return rooms_[state_[at]]; }

    void refreshed(const Terms &terms) {
        terms_ = terms;
        waste_.clear();
        for (int number : live_) offers_[number].clear();
        for (auto &each : slots_) each.held.clear();
        size_t counts = policy_ == kOurs ? terms_.several + 2 * terms_.models : 0;
        places_.assign(counts, 0);
        for (int number : live_) {
            const auto &held = slots(number);
            for (size_t i = 0; i < counts; i++) places_[i] += int64_t(held[i]) * int64_t(nodes_[number].size());
        }
    }

    // Who waits now: pods and their shapes, the first come first.
    void wait(const std::vector<std::pair<int, int>> &pods) {
        waiting_.clear();
        for (auto [pod, shape] : pods)
            if (shapes_[shape].cards > 1) waiting_.emplace_back(pod, shape);
        changed();
    }

    bool fits(int shape, const Room &room) const {
        const Shape &s = shapes_[shape];
        if (room.cpu < s.cpu) return false;
        if (!s.cores) return true;
        if (!(s.models >> room.model & 1)) return false;
        if (s.cards) return room.idle() >= s.cards;
        return room.cards && room.at(room.cards - 1) >= s.cores;
    }

    // The node, and how it is left; -1 if there is none.
    int choose(int shape, int memory, Room *after) {
        std::vector<double> prices;
        if (policy_ == kOurs) {
            for (int i = 0; i < terms_.several; i++)
                prices.push_back(terms_.missed[i] * more_than(double(free_) * terms_.rate[i], places_[i]) +
                                 terms_.always[i]);
            for (int i = 0; i < terms_.models; i++)
                prices.push_back(double(places_[terms_.several + terms_.models + i]) >= terms_.spare[i] ? terms_.idle : 0);
        }
        if (policy_ == kOurs && !kept_known_) find_kept();
        offered_.clear();
        for (int number : live_) {
            Offer &offer = offer_of(shape, number);
            if (!offer.fits) continue;
            double key = offer.key;
            if (!offer.loss.empty()) {
                double sum = 0;
                for (auto [at, n] : offer.loss) sum += double(n) * prices[at];
                key = rounded(key + sum);
            }
            for (auto [kept, cards] : kept_)
                if (kept == number && shapes_[shape].cards < cards) key += kKept;
            offered_.emplace_back(key, number);
        }
        if (offered_.empty()) return -1;
        auto less = [this](const auto &a, const auto &b) { return before(a, b); };
        auto best = *std::min_element(offered_.begin(), offered_.end(), less);
        int at = among(best, shape, memory);
        if (at < 0) {
            std::sort(offered_.begin(), offered_.end(), less);
            for (size_t i = 0; i < offered_.size() && at < 0; i++) at = among(offered_[i], shape, memory);
        }
        if (at >= 0) *after = offer_of(shape, state_[at]).after;
        return at;
    }

    void put(int pod, int shape, int memory, int at, const Room &after) {
        memory_[at] -= memory;
        pods_[at]++;
        running_ += shapes_[shape].cores > 0;
        closing_.started(pod, shapes_[shape].cards, at);
        move(at, after);
    }

    void leave(int shape, int memory, int at, uint64_t free) {
        memory_[at] += memory;
        pods_[at]--;
        running_ -= shapes_[shape].cores > 0;
        closing_.left(shapes_[shape].cores > 0);
        Room room = rooms_[state_[at]];
        room.cpu += shapes_[shape].cpu;
        room.free = free;
        move(at, room);
    }

    // FGD's measure of what is free, in thousandths of a card.
    double fragments(const Room &room) {
        auto [found, added] = pieces_.try_emplace(room, 0.0);
        if (!added) return found->second;
        std::vector<double> each(typical_->count);
        int64_t idle = room.cores();
        for (int i = 0; i < typical_->count; i++) {
            int64_t fitting = 0, small = 0;
            for (int c = 0; c < room.cards; c++) {
                if (room.at(c) < typical_->cores[i])
                    small += room.at(c);
                else
                    fitting++;
            }
            bool useless = !(typical_->models[i] >> room.model & 1) || typical_->none[i] ||
                           room.cpu < typical_->cpu[i] || fitting < typical_->cards[i];
            each[i] = double(useless ? idle : small) * typical_->popularity[i];
        }
        return found->second = pairwise(each.data(), typical_->count) * 10;
    }

   private:
    using Found = std::pair<double, int>;

    bool before(const Found &a, const Found &b) const {
        if (a.first != b.first) return a.first < b.first;
        if (policy_ != kOurs) return false;
        const Room &x = rooms_[a.second], &y = rooms_[b.second];
        return std::make_tuple(x.cpu, x.free, x.cards, x.model) < std::make_tuple(y.cpu, y.free, y.cards, y.model);
    }

    int among(const Found &best, int shape, int need) const {
        const Shape &s = shapes_[shape];
        int closed = s.cores && s.cards < closing_.cards() ? closing_.node() : -1;
        std::pair<int, int> first{0, -1};
        for (const Found &each : offered_) {
            if (each.first != best.first || (policy_ == kOurs && each.second != best.second)) continue;
            for (int at : nodes_[each.second]) {
                if (memory_[at] < need || pods_[at] >= kMostPods || at == closed) continue;
                std::pair<int, int> found{policy_ == kOurs ? memory_[at] : 0, at};
                if (first.second < 0 || found < first) first = found;
            }
        }
        return first.second;
    }

    int intern(const Room &room) {
        auto [found, added] = numbers_.try_emplace(room, int(rooms_.size()));
        if (added) {
            rooms_.push_back(room);
            cpu_.push_back(0);
            nodes_.emplace_back();
            offers_.emplace_back();
            slots_.emplace_back();
            place_.push_back(-1);
        }
        return found->second;
    }

    std::set<int> &enliven(int number) {
        if (place_[number] < 0) {
            place_[number] = int(live_.size());
            live_.push_back(number);
        }
        return nodes_[number];
    }

    void move(int at, const Room &room) {
        int old = state_[at], now = intern(room);
        nodes_[old].erase(at);
        if (nodes_[old].empty()) {
            int last = live_.back();
            live_[place_[old]] = last;
            place_[last] = place_[old];
            live_.pop_back();
            place_[old] = -1;
            offers_[old].clear();
            offers_[old].shrink_to_fit();
        }
        state_[at] = now;
        cpu_[now] = cpu_[old];
        enliven(now).insert(at);
        changed();
        free_ += room.cores() - rooms_[old].cores();
        if (policy_ == kOurs && !places_.empty()) {
            slots(old), slots(now);
            for (size_t i = 0; i < places_.size(); i++) places_[i] += slots_[now].held[i] - slots_[old].held[i];
        }
    }

    void changed() {
        kept_.clear();
        kept_known_ = waiting_.empty() && closing_.node() < 0;
    }

    void find_kept() {
        std::unordered_map<int, std::vector<std::pair<int, int>>> nearest;
        for (auto [pod, shape] : waiting_) {
            auto [found, added] = nearest.try_emplace(shape);
            if (added) {
                auto &known = left_[shape];
                for (int number : live_) {
                    auto [left, fresh] = known.try_emplace(number, 0);
                    if (fresh) left->second = left_to_end(shape, number);
                    if (left->second >= 0) found->second.emplace_back(left->second, number);
                }
                std::sort(found->second.begin(), found->second.end());
            }
            for (auto [left, number] : found->second) {
                bool taken = false;
                for (auto &each : kept_) taken |= each.first == number;
                if (taken) continue;
                kept_.emplace_back(number, shapes_[shape].cards);
                break;
            }
            if (kept_.size() == kMostKept) break;
        }
        kept_known_ = true;
        closing_.look(
            waiting_, running_, [this](int shape) { return this->nearest(shape); },
            [this](int shape) { return shapes_[shape].cards; });
    }

    // The node with the least to end before the shape fits, and how much; -1 if none is large enough.
    std::pair<int, int> nearest(int shape) {
        std::pair<int, int> best{0, -1};
        auto &known = left_[shape];
        for (int number : live_) {
            auto [left, fresh] = known.try_emplace(number, 0);
            if (fresh) left->second = left_to_end(shape, number);
            std::pair<int, int> found{left->second, *nodes_[number].begin()};
            if (left->second >= 0 && (best.second < 0 || found < best)) best = found;
        }
        return {best.second, best.first};
    }

    int left_to_end(int shape, int number) const {
        const Shape &s = shapes_[shape];
        const Room &room = rooms_[number];
        if (cpu_[number] < s.cpu || room.cards < s.cards || !(s.models >> room.model & 1)) return -1;
        int held = 0;
        for (int i = room.cards - s.cards; i < room.cards; i++) held += kWhole - room.at(i);
        return held;
    }

    std::vector<int> count(const Room &room) const {
        std::vector<int> held(terms_.several + 2 * terms_.models, 0);
        int idle = room.idle();
        for (int i = 0; i < terms_.several && idle > 1; i++) {
            int fit = idle / terms_.slot_cards[i];
            if (fit && terms_.slot_cpu[i]) fit = std::min(fit, std::max(0, room.cpu) / terms_.slot_cpu[i]);
            if (fit && terms_.slot_models[i] >> room.model & 1) held[i] = fit;
        }
        if (idle == room.cards)
            held[terms_.several + room.model] = idle;
        else
            held[terms_.several + terms_.models + room.model] =
                int(std::min<int64_t>(idle, std::max(0, room.cpu) / terms_.spare_cpu));
        return held;
    }

    const std::vector<int> &slots(int number) {
        if (slots_[number].held.empty()) slots_[number].held = count(rooms_[number]);
        return slots_[number].held;
    }

    Offer &offer_of(int shape, int number) {
        auto &row = offers_[number];
        if (row.empty()) row.resize(shapes_.size());
        Offer &offer = row[shape];
        if (!offer.known) {
            offer.known = true;
            offer.fits = fits(shape, rooms_[number]);
            if (offer.fits) price(shape, number, &offer);
        }
        return offer;
    }

    Room less(const Room &room, const Shape &s, int card) const {
        Room after = room;
        int cards[kCards];
        for (int i = 0; i < room.cards; i++) cards[i] = room.at(i);
        for (int i = 0; i < s.cards; i++) cards[room.cards - 1 - i] = 0;
        if (!s.cards && s.cores) cards[card] -= s.cores;
        after.free = pack(cards, room.cards);
        after.cpu -= s.cpu;
        return after;
    }

    void price(int shape, int number, Offer *offer) {
        const Room room = rooms_[number];
        const Shape &s = shapes_[shape];
        int card = 0;
        if (s.cores && !s.cards)
            while (room.at(card) < s.cores) card++;
        offer->after = less(room, s, card);
        if (policy_ == kBestFit) {
            double left = offer->after.cpu / kMostCpu + offer->after.cores() / kMostCores;
            offer->key = -double(int(100 * (1 - left / 2)));
        } else if (policy_ == kFgd) {
            double was = fragments(room);
            offer->key = -sigmoid(was - fragments(offer->after));
            for (int next = card + 1; s.cores && !s.cards && next < room.cards; next++) {
                if (room.at(next) == room.at(next - 1)) continue;
                Room other = less(room, s, next);
                double key = -sigmoid(was - fragments(other));
                if (key < offer->key) offer->key = key, offer->after = other;
            }
        } else {
            ours(number, offer);
        }
    }

    void ours(int number, Offer *offer) {
        const Room room = rooms_[number], &after = offer->after;
        double lost = waste(after) - waste(room);
        int taken = room.cores() - after.cores();
        lost += terms_.model_price[room.model] * double(taken);
        if (taken && terms_.pack != 0) lost += terms_.pack * double(after.cores());
        if (taken && terms_.open != 0 && room.cpu && room.idle() == room.cards) lost += terms_.open * double(room.cpu);
        if (!taken) lost += terms_.cpu_left * double(after.cpu);
        offer->key = rounded(lost);
        if (places_.empty()) return;
        const auto &was = slots(number);
        auto now = count(after);
        for (size_t i = 0; i + terms_.models < now.size(); i++)
            if (was[i] > now[i]) offer->loss.emplace_back(int(i), was[i] - now[i]);
    }

    double waste(const Room &room) {
        auto [found, added] = waste_.try_emplace(room, 0.0);
        if (added) {
            double f = double(fill(room)), r = double(roll(room) * kCoreValue);
            found->second = terms_.fill_part * f + terms_.roll_part * r;
        }
        return found->second;
    }

    int64_t fill(const Room &room) const {
        int64_t weights = 0, used = 0;
        for (int i = 0; i < terms_.singles; i++) {
            weights += terms_.fill_weight[i];
            if (!terms_.fill_allowed[room.model * terms_.singles + i]) continue;
            int64_t held = 0, cores = terms_.fill_cores[i];
            for (int c = 0; c < room.cards; c++) held += room.at(c) / cores;
            held = std::min<int64_t>(held, room.cpu / terms_.fill_cpu[i]);
            used += held * cores * kCoreValue * terms_.fill_weight[i];
        }
        return terms_.singles ? room.cores() * kCoreValue * weights - used : 0;
    }

    int64_t roll(const Room &room) const {
        alignas(64) uint16_t free[kCards][kBags];
        alignas(64) uint16_t best[kBags], rest[kCards][kBags];
        alignas(64) int32_t host[kBags];
        int cards = 0;
        for (int c = 0; c < room.cards; c++) {
            if (!room.at(c)) continue;
            std::fill(free[cards], free[cards] + kBags, uint16_t(room.at(c) << kPlaceBits | cards));
            cards++;
        }
        std::fill(host, host + kBags, room.cpu);
        for (int step = 0; step < terms_.steps && cards; step++) {
            const uint16_t *asked = terms_.asked + (size_t(step) * terms_.models + room.model) * kBags;
            const int32_t *cpu = terms_.bag_cpu + size_t(step) * kBags;
            for (int b = 0; b < kBags; b++) best[b] = 0xFFFF;
            for (int c = 0; c < cards; c++)
                for (int b = 0; b < kBags; b++) {
                    rest[c][b] = uint16_t(free[c][b] - asked[b]);
                    best[b] = std::min(best[b], rest[c][b]);
                }
            for (int b = 0; b < kBags; b++) {
                bool able = (best[b] < 0x8000) & (host[b] >= cpu[b]);
                host[b] -= able ? cpu[b] : 0;
                best[b] = able ? best[b] : 0x8000;
            }
            for (int c = 0; c < cards; c++)
                for (int b = 0; b < kBags; b++) free[c][b] = rest[c][b] == best[b] ? rest[c][b] : free[c][b];
            if (step % 6 == 5) {
                uint16_t most = 0;
                for (int c = 0; c < cards; c++)
                    for (int b = 0; b < kBags; b++) most = std::max(most, free[c][b]);
                if (most < terms_.least) break;
            }
        }
        int64_t left = 0;
        for (int c = 0; c < cards; c++)
            for (int b = 0; b < kBags; b++) left += free[c][b] >> kPlaceBits;
        return left;
    }

    static double sigmoid(double milli) { return double(int(100 / (1 + std::exp(-milli / 1000)))); }

    Policy policy_;
    const std::vector<Shape> &shapes_;
    const Typical *typical_;
    Terms terms_{};
    std::vector<int> memory_, pods_, state_;
    std::unordered_map<Room, int, RoomHash> numbers_;
    std::vector<Room> rooms_;
    std::vector<int> cpu_, place_, live_;
    std::vector<std::set<int>> nodes_;
    std::vector<std::vector<Offer>> offers_;
    std::vector<Slots> slots_;
    std::unordered_map<Room, double, RoomHash> waste_, pieces_;
    std::unordered_map<int, std::unordered_map<int, int>> left_;
    std::vector<int64_t> places_;
    std::vector<std::pair<int, int>> waiting_;  // pods, and their shapes
    Closing closing_;
    int running_ = 0;
    std::vector<std::pair<int, int>> kept_;
    std::vector<Found> offered_;
    bool kept_known_ = true;
    int64_t free_ = 0;
};

}  // namespace departures

#endif
