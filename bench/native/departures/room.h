// What is free on a node, and the arithmetic that has to come out as Python's and numpy's does.

#ifndef DEPARTURES_ROOM_H
#define DEPARTURES_ROOM_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace departures {

constexpr int kCards = 8;    // of a node, at most
constexpr int kWhole = 100;  // cores of a card
constexpr int kBags = 128;
constexpr int kPlaceBits = 6;
constexpr int kMostPods = 1001;
constexpr int kMostKept = 2;
constexpr double kKept = 10000;
constexpr double kSigmas = 8, kCounted = 30;
constexpr double kMostCpu = 128000, kMostCores = 800;
constexpr int64_t kCoreValue = 256000;  // one core, as the fragmentation counts
constexpr double kFillWeight = 1000000;

enum Policy { kOurs, kFgd, kBestFit };

struct Room {
    uint64_t free = 0;  // a byte a card, in rising order from the top one down, so that rooms compare as numbers
    int32_t cpu = 0;
    int16_t model = 0;
    int16_t cards = 0;
    bool operator==(const Room &o) const {
        return free == o.free && cpu == o.cpu && model == o.model && cards == o.cards;
    }
    int at(int card) const { return (free >> (8 * (kCards - 1 - card))) & 255; }
    int cores() const {
        int sum = 0;
        for (int i = 0; i < cards; i++) sum += at(i);
        return sum;
    }
    int idle() const {
        int sum = 0;
        for (int i = 0; i < cards; i++) sum += at(i) == kWhole;
        return sum;
    }
};

struct RoomHash {
    size_t operator()(const Room &r) const {
        uint64_t h = r.free * 0x9E3779B97F4A7C15ull ^ (uint64_t(uint32_t(r.cpu)) << 16 | uint64_t(r.model));
        h ^= h >> 29;
        h *= 0xBF58476D1CE4E5B9ull;
        return h ^ h >> 32;
    }
};

inline uint64_t pack(int *cards, int count) {
    for (int i = 1; i < count; i++)
        for (int j = i; j && cards[j] < cards[j - 1]; j--) std::swap(cards[j], cards[j - 1]);
    uint64_t free = 0;
    for (int i = 0; i < count; i++) free |= uint64_t(cards[i]) << (8 * (kCards - 1 - i));
    return free;
}

// Python's round(value, 2).
inline double rounded(double value) {
    double scaled = value * 100, whole = std::floor(scaled);
    if (std::fabs(scaled - whole - 0.5) > 1e-6 && std::fabs(scaled) < 1e12) return std::nearbyint(scaled) / 100;
    char text[400];
    std::snprintf(text, sizeof text, "%.2f", value);
    return std::strtod(text, nullptr);
}

// The sum as numpy adds the elements of a row.
inline double pairwise(const double *v, int n) {
    if (n < 8) {
        double sum = 0.;
        for (int i = 0; i < n; i++) sum += v[i];
        return sum;
    }
    if (n <= 128) {
        double r[8];
        for (int i = 0; i < 8; i++) r[i] = v[i];
        int i = 8;
        for (; i < n - n % 8; i += 8)
            for (int j = 0; j < 8; j++) r[j] += v[i + j];
        double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
        for (; i < n; i++) sum += v[i];
        return sum;
    }
    int half = n / 2;
    half -= half % 8;
    return pairwise(v, half) + pairwise(v + half, n - half);
}

inline double more_than(double expected, int64_t places) {
    double far = kSigmas * std::sqrt(expected) + kSigmas;
    if (double(places) > expected + far) return 0;
    if (expected > kCounted) return std::erfc((double(places) - 0.5 - expected) / std::sqrt(2 * expected)) / 2;
    double chance = std::exp(-expected), fewer = 0;
    for (int64_t n = 0; n < places; n++) {
        fewer += chance;
        chance *= expected / double(n + 1);
    }
    return std::max(0.0, 1 - fewer);
}

}  // namespace departures

#endif
