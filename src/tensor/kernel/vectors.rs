//! Loops compiled for the vector instructions of this processor.

/// Calls a function compiled for the widest vectors that this processor has. The function must be `#[inline(always)]`:
/// only what is inlined here is compiled again.
#[cfg(target_arch = "x86_64")]
#[inline]
#[expect(unsafe_code, reason = "with it, statistics of 1 GiB take two thirds as long")]
pub(in crate::tensor) fn with_wide_vectors<A, R>(f: impl FnOnce(A) -> R, arguments: A) -> R {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    fn avx512<A, R>(f: impl FnOnce(A) -> R, arguments: A) -> R {
        f(arguments)
    }

    #[target_feature(enable = "avx2")]
    fn avx2<A, R>(f: impl FnOnce(A) -> R, arguments: A) -> R {
        f(arguments)
    }

    let has_avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    if has_avx512 {
        // SAFETY: this processor has the four features.
        unsafe { avx512(f, arguments) }
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: this processor has the feature.
        unsafe { avx2(f, arguments) }
    } else {
        f(arguments)
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(in crate::tensor) fn with_wide_vectors<A, R>(f: impl FnOnce(A) -> R, arguments: A) -> R {
    f(arguments)
}
