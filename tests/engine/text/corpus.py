"""Odd strings that tokenizers trip over."""

from __future__ import annotations

PLAIN = [
    "",
    "a",
    " a",
    "a ",
    "Hello, world!",
    "I'm you're WE'LL they'VE don't O'Neil's 's 'S ’s",
    "a_b__c___d fooBarBaz HTTPServer XMLHttpRequest",
    "A.B.C. e.g. i.e. U.S.A. ?!?!!! ... ---- ==== ****",
    "C++ C# F# .NET node.js $100 €50 £3 ¥9 ₿",
    "—–…“”‘’«»",
]
CODE = [
    "def f(x):\n    return x ** 2 # комментарий\n\n\n    pass",
    "\t\t\tif x:\n\t\t\t\treturn",
    '{"a": [1, 2, {"b": null}]}',
    '<html><body class="x">&amp;</body></html>',
    "SELECT * FROM t WHERE a='b';--",
    "https://example.com/a?b=c&d=%20#frag",
    "\\u0041\\n\\t",
    "    indented\n        more\n",
    "tab\tsep\tvalues\n1\t2\t3",
]
NUMBERS = ["1234567890", "3.14159 1,000,000 0x1F 1e-9", "2024-01-02T03:04:05Z"]
NUMBERS_BEYOND_ASCII = ["१२३ ५६", "١٢٣ ²³ ½", "½cup ⅓ Ⅷ"]
WHITESPACE = [
    "  two  spaces ",
    "   \n\n\t x",
    "line\r\nline2\r\n\r\n",
    "\n" * 5,
    "\r",
    "\n\r",
    " \n",
    " \r\n x",
    "\t \t",
    "\n \n  \n   \n",
    "a\u00a0b\u2003c\u200bd\u3000e",
    "\u2028\u2029\x85",
    "x" * 300,
]
LONG_SPACES = [" " * 100, "a" + " " * 37 + "b"]
SCRIPTS = [
    "日本の首都は東京です。",
    "中文，测试！“引号”",
    "한국어 문장입니다.",
    "مرحبا بالعالم",
    "שלום עולם",
    "हिन्दी में परीक्षण",
    "ไทยทดสอบ",
    "…\u202eRTL override\u202c",
    "mixed العربية and English 中文 123",
    "ǅ ﬀ ß ẞ İ ı ﷺ",
    "𝓗𝓮𝓵𝓵𝓸 𝔘𝔫𝔦",
]
EMOJI = [
    "🙂",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈 flag 🇩🇪🇯🇵",
    "👍🏽👍🏿",
    "\U0001f9d1\u200d\U0001f4bb codes",
]
COMBINING = [
    "e\u0301 cafe\u0301 n\u0303 A\u030a",
    "a\u0300\u0301\u0302",
    "\u1112\u1161\u11ab",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢",
    "Å Ω",
]
CONTROL = ["\ufeffBOM", "\x00\x01\x07\x1b[0m\x7f", "�", "Ġ Ċ ĉ Ā", "<0x41> <0xE2>"]

EVERYWHERE = [*PLAIN, *CODE, *NUMBERS, *WHITESPACE, *SCRIPTS, *EMOJI, *CONTROL]
"""Strings on which every conversion of a vocabulary agrees."""
ALL = [*EVERYWHERE, *NUMBERS_BEYOND_ASCII, *LONG_SPACES, *COMBINING]
