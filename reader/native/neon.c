/* NEON belongs to every 64-bit ARM CPU. Big-endian ones take the plain code. */

#include "neon.h"

#ifdef HAS_NEON
#include <arm_neon.h>
#include <string.h>

/* Two neighboring pixels of each line per step, four bytes each; where a pixel has three, the fourth belongs to the next one and
 * what is made of it is overwritten. The odd last weight is 0. */
static inline __attribute__((always_inline)) void across_of(
    const Axis *axis, int pixel_bytes, uint8_t *const in[LINES], uint8_t *const out[LINES]) {
    const int32x4_t half = vdupq_n_s32(1 << (axis->precision - 1)), shift = vdupq_n_s32(-axis->precision);
    for (int i = 0; i < axis->outputs; i++) {
        const int16_t *weights = axis->weights + (size_t)i * (size_t)axis->taps;
        size_t at = (size_t)axis->starts[i] * (size_t)pixel_bytes, to = (size_t)i * (size_t)pixel_bytes;
        int32x4_t sums[LINES] = {half, half, half, half};
        for (int n = 0; n < axis->counts[i]; n += 2, at += 2 * (size_t)pixel_bytes)
            for (int line = 0; line < LINES; line++) {
                uint32_t first, second;
                memcpy(&first, in[line] + at, 4);
                memcpy(&second, in[line] + at + pixel_bytes, 4);
                uint8x8_t bytes = vcreate_u8(first | (uint64_t)second << 32);
                int16x8_t pixels = vreinterpretq_s16_u16(vmovl_u8(bytes));
                sums[line] = vmlal_n_s16(sums[line], vget_low_s16(pixels), weights[n]);
                sums[line] = vmlal_n_s16(sums[line], vget_high_s16(pixels), weights[n + 1]);
            }
        for (int line = 0; line < LINES; line++) {
            int16x4_t words = vqmovn_s32(vshlq_s32(sums[line], shift));
            uint8x8_t bytes = vqmovun_s16(vcombine_s16(words, words));
            uint32_t pixel = vget_lane_u32(vreinterpret_u32_u8(bytes), 0);
            memcpy(out[line] + to, &pixel, 4);
        }
    }
}

void across_neon(const Axis *axis, int pixel_bytes, uint8_t *const in[LINES], uint8_t *const out[LINES]) {
    if (pixel_bytes == 3)
        across_of(axis, 3, in, out);
    else
        across_of(axis, 4, in, out);
}

void down_neon(const int16_t *weights, uint8_t *const *lines, int count, int precision, uint8_t *out, int size) {
    const int32x4_t half = vdupq_n_s32(1 << (precision - 1)), shift = vdupq_n_s32(-precision);
    for (int i = 0; i < size; i += 16) {
        int32x4_t sums[4] = {half, half, half, half};
        for (int n = 0; n < count; n++) {
            uint8x16_t bytes = vld1q_u8(lines[n] + i);
            int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes)));
            int16x8_t high = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(bytes)));
            sums[0] = vmlal_n_s16(sums[0], vget_low_s16(low), weights[n]);
            sums[1] = vmlal_n_s16(sums[1], vget_high_s16(low), weights[n]);
            sums[2] = vmlal_n_s16(sums[2], vget_low_s16(high), weights[n]);
            sums[3] = vmlal_n_s16(sums[3], vget_high_s16(high), weights[n]);
        }
        int16x4_t words[4];
        for (int n = 0; n < 4; n++)
            words[n] = vqmovn_s32(vshlq_s32(sums[n], shift));
        uint8x8_t low = vqmovun_s16(vcombine_s16(words[0], words[1])), high = vqmovun_s16(vcombine_s16(words[2], words[3]));
        vst1q_u8(out + i, vcombine_u8(low, high));
    }
}
#endif
