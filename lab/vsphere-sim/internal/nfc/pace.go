package nfc

import (
	"context"
	"sync"
	"time"
)

// pace spreads bytes over time. What a late timer costs is made up for, up to paceCredit.
type pace struct {
	mu   sync.Mutex
	next time.Time
}

const paceCredit = 25 * time.Millisecond

// take gives how long to wait before n bytes may go at a rate.
func (p *pace) take(n int, bytesPerS int64) time.Duration {
	if bytesPerS <= 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if earliest := now.Add(-paceCredit); p.next.Before(earliest) {
		p.next = earliest
	}
	p.next = p.next.Add(time.Duration(float64(n) / float64(bytesPerS) * float64(time.Second)))
	return p.next.Sub(now)
}

// pacedBytes is how much to send at once so that a slow rate is even.
func pacedBytes(n int, rates ...int64) int {
	const piecesPerS, least = 200, 512
	for _, rate := range rates {
		if rate > 0 {
			n = min(n, max(least, int(rate/piecesPerS)))
		}
	}
	return n
}

func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
