"""What was on the wire once, as it was: it shows when somebody changes what may not change."""

# HELLO of each version of the protocol, by the program "old", as request 1.
HELLO = {
    1: bytes.fromhex(
        "33000000" "0100" "0000" "01000000" "00000000" "0000000000000000"  # header
        "54435831" "0100" "0100" "01000000" "00000000" "0000000000000000"  # struct wire_hello
        "6f6c64"
    ),
}  # fmt: skip

# How each version reads what follows the header of the reply: version, reserved, layout, features,
# boot_id, client, pid, reserved.
HELLO_REPLY = {1: "=HHIQQQII"}
