package nfc

import (
	"io"
	"testing"
)

// BenchmarkRead reads the disk over and over, 16 requests of 1 MiB in flight, and throws the bytes away.
func BenchmarkRead(b *testing.B) {
	for _, one := range []struct {
		name, service string
		buffer        uint32
	}{{"clear64k", "vpxa-nfc", 64 << 10}, {"clear1m", "vpxa-nfc", 1 << 20}, {"tls1m", "vpxa-nfcssl", 1 << 20}} {
		b.Run(one.name, func(b *testing.B) {
			l := start(b)
			c := l.connect(one.service, one.buffer, 1, 0x1e)
			const request, inFlight = 1 << 20, 16
			answer := request + request/int(one.buffer)*60
			b.SetBytes(request)
			buffer := make([]byte, answer)
			for i := range b.N + inFlight {
				if i < b.N {
					c.askRead(uint64(i%32)<<20, request, 0)
				}
				if i < inFlight {
					continue
				}
				if _, err := io.ReadFull(c.wire, buffer); err != nil {
					b.Fatal(err)
				}
			}
			c.close()
		})
	}
}
