"""GGUF's IQ1, IQ2 and IQ3 blocks as codes: numbers of three or four bits that stand for a few integers, with scales of 16 values.

A file has indices into a grid, a list of groups of four or eight magnitudes, and signs apart. Layouts are the block_iq* of
ggml-common.h, values those of dequantize_row_iq* (ggml-quants.c).
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Codes:
    """A value is d * scale * unit * table[code], exact in float32; a code has n_bits."""

    table: tuple[int, ...]
    unit: float
    unpack: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
    """uint8 [n, bytes of a block] -> codes uint8 [n, 256], scales uint8 [n, 16], d float16 [n, 1]."""
    n_bits: int = 3


# A bit for each group that there could be, its first magnitude the lowest digit; in the order of the file's indices.
# fmt: off
_GRIDS: dict[str, tuple[int, int, str]] = {
    "IQ2_XXS": (
        3, 8,
        "by7>NgfI-Vva))Lh*ggnb;U7QKFuj#lKx=CSX3&Fo!WuVU;XfC4O$NnfC?%Eu>%UFov^A>{M^fzuL2l?()_&EB=#p&#6VTjX?jA<Hxep`bs|-~Wmj>my"
        "rSc>D20!69;IAH>v*-Rcj}@td64E+nQR@JQH!TLP(0D?6`uy_k-;uM5Z;G>VbT~zS5m`{4BBo^n?uRPBR#66L?7DiQS8=H7e}evv)s#xmNXkB*|aoy?v"
        "(X4`z^yaVw&Sqs4U@XkiU)Wka=Uy+#a#+H|%)EIflD$%o)n7>H+?!Ehpd8eA&N3f7AW}"
    ),
    "IQ2_XS": (
        3, 8,
        "T~SM}gfI-VvWj|&h!x_LQCEmlRIE@>Ir+5E_o^8PP2$*2@BQj`eQrH^FL&jpI4-6tP(|_7qr1RTXet6w1vh)yueWm-We{1Hrx>t6VTTRyvM!o{mMSQxH"
        "+q2s-pUCWH;ySYYz<<S_I<{;0HefD?+FMg>{HnXW~&u$6{K&qWKst(xN1z{iRn40S7A%Zp=(ISX7Z{|Kr_lx-qM1+&oHAX+Tkfx9aC$}C(JYK4atJ`GR"
        "$5Id)e)&dBGS-`-{0j0cGes*nFOZ8|<{onn{f&{UhNF@eaij>K~*1%^Z@OKH|9LG4d%oRJhA^KdhgSyGo1^2UCfa?k-^A72qQ2Mr=ldg?<GFvRP1hCAl"
        "v|Ken=5@+`e|Ow`v)+UFFRdm;Qkl*8|_g2B3dPow(-"
    ),
    "IQ2_S": (
        3, 8,
        "ZBk2a1tAQJvWhqbnib-d5i7(g5G#~Z)(K4esuqprXKZYPnGIXEXU9ugR^~2sNU}`5<FU+a*ENz^!3Br`jgpfPZ*!KY^0fQ_Vj?Xvg@~A{jREC7O0`(R3"
        "Z>Foo>VgVTCbo(Ay}pY0-bGShm`0*_?N|@3~j1ok2bS*s;TijETNGxf6{{#zXUrdQ$Y=KhYeqXXva5&I6iSxO77KmdAyBz9k!i4vimZtUR0w4rS>|6fR"
        "qElMzGKZ(}8?Ia0iS2L@t2ewLS#tnvckUm=N$sFlvb;&)O3X**E2OC~hM=fpmNdN?>%e<2}hOK~F93h#Aa#^-{YurFG0V;=V5nyWBnU{E4g%r7I5B)R4"
        "hlUv(%?KP$`RvSL$0@f-lB{L^8V@7RDuPp^T{$G~Kq-Woc7Cgg;X%wF`PG_IiX?eJG-VArT#HT-5RdTaUu"
    ),
    "IQ3_XXS": (
        8, 4,
        "O;JG#!!Qg}LI+`|4z_!q;=&$~!5(CK8heG=sn49{G~HB6n^>0QWP6xY;M(kNQlOjI0}H0bCO8x`Qc1WjK=p_4LIK|JlAu}Jk^&|c#b)9wRD()J#=WaJU"
        "cQ2aYM{opwGaLAjJ}K7Vo9AOFZ3q*&Gbs{M&pi_BM8Kr>rdf#=02O5RM-{J<U1?Fv!O6Xlx7C=*-p3|p$h4W)!hc2CS}CXL7Z&=cUjM+EAnXIIJNE$&="
        "9YkHWJ|=@_P;!>2JbtUH?Lb^xm+C?{YUC_maCT$E-Y(5m$m~zoR>5Aie"
    ),
    "IQ3_S": (
        8, 4,
        "Em1*A13?h19ab1TO&|~Ggbl2}=*S2gPZL@H(+N4u-ZtU`Mo|#o5kDa02}1A{_RQLchOX+as@eVdJ-PRgHkZ@UTX_0<@^KX~I-eeFs=UlP8X3~!)!o536"
        "Tl$wht7z=<(%$u&Ga34<b=JfB8|1sW?V;IlzEG=)V;zov<6&j4~gr{pFg*$Pt|ieHXSLyLD=yO-5a-o#9)oFQMj>8l{m;t7SYR^jW_}5k@_2U+}i+wEQ"
        "K_x;vBcKt>N6Qs!{}}nyi6?L5UHN>YOIhK&*$0KnLd)Kd_UE#D?TEpJ1yjcU7(ks$h`~4iKjhMZ!SF_QaGIgxy|uu#gItYu7=@WTD&xO6A42bge$48UQ"
        ";TY$h$$Bw{(cXz3#q95MOk&;|e38jy@w0<pzh=WegB;o{Nc96o;}nOte|E`MRt2L1p"
    ),
    "IQ1_S": (
        3, 8,
        "EmBQuR7n)QuersvnJD+QRWU9a?IwXoR*{Lbl&a)a5+%_pQ)Mgqh=P*UKo)5?p|t}Y6la8p#%vVQjY4##e_)sa7s71P(lcSeAOpH^<w{)nQQgk2>cY9_o"
        "O{mGM@f^(@mtjTO<Y2&&yvHW*_S9Rw;pY6GN~{g1XAn|$KqXY_V{f`!T2MJQ7)hwanzRtxb3Hdj3O5%NfQg>PpMTOn_y@!gBucF)6_>I&LMDd&rw8Z{-"
        "uYRz`5!jUG*1^?NqW|wOCBExxW^V%M?-+HZw{RxYIxA*C}>1tmIa_<&@Tg!Yzest;R@`k$fR8U`gRfkfD*D^d-_!QK*O&B$CntTJpagHN(4~S~=({WH5"
        "dUTJ?Jhta7y4pKJ!p{JVH5(L2ED+qTL@w(7+`P=+K=WeF4%B39Y!`~<eMv~vDkyM0w05C4;GTOM^-DCM|y<Z=H`I@KS~u>(Sa1Sev^h_$um8H?16$!f*"
        "y`i^EDP1f*=hSeE4IzL=l{?rjm&uiCq=0AM-yzqOreE-ecub(f^PjB3?Y2McsOP*%MwyJ*3hBp3;4o{8^oDycZ1Hm#)`Du{KnJai#-Pxl!XgCtR1Vsct"
        "Tkm(}m6~O9GWzHJ(vPznd6i%C%Y5tC$A`gm?|@WaMdcr4=}d{OMT21Vq+ChL;ZTjEs+Y1y?*B8>y_7c@b!$^c$#Ob{7)a9@d$s6&1ZdRM{<J~mE^5u<R"
        "%p~EL*BUvOc&J<&|5f#u`+`p0<XQ@+m^-!3Ke<7iNks<Q&!vNMY7qe*<gA2P}SoJKJW|cUx<thO*k_diX^@7_=;X<nkbLVrl1zTr)+u^UB3vYy`;yGe^"
        "&lK<;_rOb@UVhK;SYNR<s0FSmPTB+<evQc0<UX!gz>cZgLbR!LsZwtbYR"
    ),
}
# fmt: on
"""Type -> (magnitudes, values in a group, the bits, deflated and in base 85)."""


@cache
def _grid(qtype: str, device: torch.device) -> Tensor:
    """Places of the magnitudes in a group, a byte for each: int64 [groups], or int32 of groups of four."""
    n_magnitudes, n_values, packed = _GRIDS[qtype]
    bits = np.unpackbits(np.frombuffer(zlib.decompress(base64.b85decode(packed), -15), np.uint8))
    groups = np.flatnonzero(bits)[:, None] // n_magnitudes ** np.arange(n_values) % n_magnitudes
    words = torch.from_numpy(groups.astype(np.uint8)).view(torch.int64 if n_values == 8 else torch.int32)
    return words.flatten().to(device)


@cache
def _signs(device: torch.device) -> Tensor:
    """int64 [256]: byte j of entry b is bit j of b."""
    bits = torch.arange(256, dtype=torch.uint8).unsqueeze(1) >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.view(torch.int64).flatten().to(device)


@cache
def _even_signs(device: torch.device) -> Tensor:
    """int64 [128]: the same of seven bits, with an eighth that makes the number of ones even."""
    sevens = torch.arange(128)
    parity = sum(sevens >> i for i in range(7)) & 1
    return _signs(device)[(sevens | parity << 7).to(device)]


def _ints(blocks: Tensor, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """Bytes start .. stop of each block as numbers of this dtype, as int32."""
    return blocks[:, start:stop].clone(memory_format=torch.contiguous_format).view(dtype).int()


def _shifted(numbers: Tensor, *shifts: int) -> Tensor:
    """Each number, shifted by each of these to the right: [n, numbers * shifts]."""
    return (numbers.unsqueeze(-1) >> torch.tensor(shifts, device=numbers.device, dtype=numbers.dtype)).flatten(1)


def _half(blocks: Tensor) -> Tensor:
    return blocks[:, :2].clone(memory_format=torch.contiguous_format).view(torch.float16)


def _codes(qtype: str, places: Tensor, signs: Tensor, bit: int) -> Tensor:
    """Groups at these places of the grid, int32 [n, groups], with signs, words of 8 values that are 0 or 1, as the bit `bit`."""
    words = _grid(qtype, places.device).index_select(0, places.flatten()).view(torch.int64).view(signs.shape)
    return (words | signs << bit).view(torch.uint8)


def _odd(numbers: Tensor, each: int = 1) -> Tensor:
    """2 n + 1 of each number, `each` times."""
    return (2 * numbers + 1).to(torch.uint8).repeat_interleave(each, 1)


def _iq2_xxs(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    places = blocks[:, 2:66].unflatten(1, (8, 8))[:, :, :4].flatten(1).int()
    rest = _ints(blocks, 2, 66, torch.int32)[:, 1::2]
    signs = _even_signs(blocks.device)[_shifted(rest, 0, 7, 14, 21) & 127]
    return _codes("IQ2_XXS", places, signs, 2), _odd(rest >> 28 & 15, 2), _half(blocks)


def _iq2_xs(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    numbers = _ints(blocks, 2, 66, torch.int16)
    signs = _even_signs(blocks.device)[numbers >> 9 & 127]
    return _codes("IQ2_XS", numbers & 511, signs, 2), _odd(_shifted(blocks[:, 66:74], 0, 4) & 15), _half(blocks)


def _iq2_s(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    places = blocks[:, 2:34].int() | (_shifted(blocks[:, 66:74].int(), 0, 2, 4, 6) & 3) << 8
    signs = _signs(blocks.device)[blocks[:, 34:66].int()]
    return _codes("IQ2_S", places, signs, 2), _odd(_shifted(blocks[:, 74:82], 0, 4) & 15), _half(blocks)


def _iq3_xxs(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rest = _ints(blocks, 66, 98, torch.int32)
    signs = _even_signs(blocks.device)[_shifted(rest, 0, 7, 14, 21) & 127]
    return _codes("IQ3_XXS", blocks[:, 2:66].int(), signs, 3), _odd(rest >> 28 & 15, 2), _half(blocks)


def _iq3_s(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    places = blocks[:, 2:66].int() | (_shifted(blocks[:, 66:74].int(), *range(8)) & 1) << 8
    signs = _signs(blocks.device)[blocks[:, 74:106].int()]
    return _codes("IQ3_S", places, signs, 3), _odd(_shifted(blocks[:, 106:110], 0, 4) & 15, 2), _half(blocks)


def _iq1_s(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rest = _ints(blocks, 34, 50, torch.int16)
    places = blocks[:, 2:34].int() | (_shifted(rest, 0, 3, 6, 9) & 7) << 8
    below = _signs(blocks.device)[(rest >> 15 & 1) * 255].repeat_interleave(4, 1)
    return _codes("IQ1_S", places, below, 2), _odd(rest >> 12 & 7, 2), _half(blocks)


def _iq1_m(blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """d is in the highest nibbles of the four words of scales, its lowest nibble first."""
    rest, words = _shifted(blocks[:, 32:48].int(), 0, 4), _ints(blocks, 48, 56, torch.int16)
    places = blocks[:, :32].int() | (rest & 7) << 8
    below = _signs(blocks.device)[(rest >> 3 & 1) * 255]
    nibbles = (words >> 12 & 15) << torch.arange(0, 16, 4, dtype=torch.int32, device=blocks.device)
    d = nibbles.sum(1, keepdim=True).to(torch.int16).view(torch.float16)
    return _codes("IQ1_S", places, below, 2), _odd(_shifted(words, 0, 3, 6, 9) & 7), d


def _with_signs(*magnitudes: int) -> tuple[int, ...]:
    return (*magnitudes, *(-magnitude for magnitude in magnitudes))


_TWO_BITS = _with_signs(8, 25, 43, 0)
_TERNARY = (-7, 1, 9, 0, -9, -1, 7, 0)
"""Eight times -1, 0 and 1 plus or minus an eighth."""

CODED: dict[str, Codes] = {
    "IQ2_XXS": Codes(_TWO_BITS, 1 / 8, _iq2_xxs),
    "IQ2_XS": Codes(_TWO_BITS, 1 / 8, _iq2_xs),
    "IQ2_S": Codes(_TWO_BITS, 1 / 8, _iq2_s),
    "IQ3_XXS": Codes(_with_signs(4, 12, 20, 28, 36, 44, 52, 62), 1 / 4, _iq3_xxs, 4),
    "IQ3_S": Codes(_with_signs(1, 3, 5, 7, 9, 11, 13, 15), 1.0, _iq3_s, 4),
    "IQ1_S": Codes(_TERNARY, 1 / 8, _iq1_s),
    "IQ1_M": Codes(_TERNARY, 1 / 8, _iq1_m),
}


def dequantize_codes(qtype: str, blocks: Tensor, out: Tensor) -> None:
    """uint8 [n, bytes of a block] -> float32 [n, 256] in `out`."""
    kind = CODED[qtype]
    codes, scales, d = kind.unpack(blocks)
    out.copy_(torch.tensor(kind.table, dtype=torch.int8, device=out.device)[codes.int()])
    out.view(-1, 16, 16).mul_((d.float() * scales * kind.unit).unsqueeze(-1))
