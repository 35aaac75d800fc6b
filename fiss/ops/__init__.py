"""Operations that losses and metrics are made of: sums over pixels, and GPU kernels."""
