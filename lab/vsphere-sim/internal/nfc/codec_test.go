package nfc

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

func TestFastLZByHand(t *testing.T) {
	// Literals "abc", a match of 9 bytes 3 back (7 in the length and 0 more), literal "d".
	data := []byte{2, 'a', 'b', 'c', 7 << 5, 0, 2, 0, 'd'}
	plain := make([]byte, 13)
	check(t, unFastLZ(plain, data))
	if string(plain) != "abcabcabcabcd" {
		t.Errorf("%q", plain)
	}
	// Level 2: a length of 9 + 255 + 1 bytes.
	plain = make([]byte, 1+265)
	check(t, unFastLZ(plain, []byte{1 << 5, 'z', 7 << 5, 255, 1, 0}))
	if !bytes.Equal(plain, bytes.Repeat([]byte{'z'}, 266)) {
		t.Errorf("%q", plain)
	}
	for _, bad := range [][]byte{{}, {3, 'a'}, {0, 'a', 1 << 5, 7}, {0, 'a', 7 << 5}, {0xFF}} {
		if unFastLZ(make([]byte, 4), bad) == nil {
			t.Errorf("% x was taken", bad)
		}
	}
}

func TestCodecsGiveBackWhatTheyTook(t *testing.T) {
	noise := rand.New(rand.NewPCG(1, 2))
	var c coder
	for range 300 {
		plain := make([]byte, noise.IntN(200_000))
		for at := 0; at < len(plain); { // runs of zeros, of noise, and of copies from before
			run := plain[at:min(len(plain), at+1+noise.IntN(9000))]
			switch noise.IntN(3) {
			case 0:
				for i := range run {
					run[i] = byte(noise.Uint32())
				}
			case 1:
				copy(run, plain[:at])
			}
			at += len(run)
		}
		for _, codec := range []uint32{codecZlib, codecFastLZ, codecSkipZ} {
			if codec == codecFastLZ && len(plain) < fastLZLeast {
				continue
			}
			got := make([]byte, len(plain))
			if err := decode(got, c.encode(plain, codec), codec); err != nil || !bytes.Equal(got, plain) {
				t.Fatalf("codec %d, %d bytes: %v", codec, len(plain), err)
			}
		}
	}
	if got := c.encode(make([]byte, 65536), codecSkipZ); !bytes.Equal(got, []byte{0, 0, 1, 0, 0, 0, 0, 0}) {
		t.Errorf("SkipZ of zeros: % x", got)
	}
	plain := make([]byte, 16384)
	copy(plain[5001:], "abc")
	if got, want := c.encode(plain, codecSkipZ), append(words(16384, 0, 5001, 3), "abc"...); !bytes.Equal(got, want) {
		t.Errorf("SkipZ: % x, want % x", got, want)
	}
}
